"""Names that documents use of each other: every one resolved, blocs unfolded to their countries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from control_plane.policy.bundle_errors import PolicyError, suggest
from control_plane.policy.catalogue import Catalogue
from control_plane.policy.documents import Document, Path
from control_plane.policy.kinds.regions import BlocDocument, RegionDocument
from penstock.policy.geography import COUNTRIES

_NOT_ISO = {"UK": "the United Kingdom is GB in ISO 3166-1", "EL": "Greece is GR in ISO 3166-1"}

MAX_SUGGESTIONS = 100
"""Unknown names for which the likeliest known one is looked up: with thousands of either it takes minutes."""


class References:
    """Looks names up in one catalogue; what is not there becomes an error and resolves to nothing."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.errors: list[PolicyError] = []
        self._names = catalogue.names
        self._members = {bloc.name: frozenset(bloc.members) for _, bloc in catalogue.of(BlocDocument)}
        self.complete = all(
            len(catalogue.of(shape)) == len(catalogue.names.get(kind, {}))
            for kind, shape in (("Region", RegionDocument), ("Bloc", BlocDocument))
        )
        """Whether every region and bloc could be read; else what lies where is not wholly known."""
        self._unfolded: dict[str, frozenset[str]] = {}
        for document, bloc in catalogue.of(BlocDocument):
            self._check_bloc(document, bloc)
        self._jurisdictions = {
            region.name: frozenset({region.country, *(b for b in self._members if region.country in self._inside(b))})
            for _, region in catalogue.of(RegionDocument)
        }

    def known(self, document: Document, path: Path, kind: str, names: Sequence[str]) -> frozenset[str]:
        """Names of documents of `kind`; any other is an error at its place in the list at `path`."""
        for index, name in enumerate(names):
            self.check(document, (*path, index), kind, name)
        return frozenset(names)

    def check(self, document: Document, path: Path, kind: str, name: str) -> None:
        """One name of a document of `kind`, at `path` itself."""
        known = self._names.get(kind, {})
        if name not in known:
            remedy = self._meant(name, known, f"add a document of kind {kind} with that name")
            self.errors.append(document.error(path, f"there is no {kind} {name}", remedy))

    def places(self, document: Document, path: Path, names: Sequence[str]) -> frozenset[str]:
        """Countries and blocs, as they stand in a list at `path`; any other name is an error."""
        for index, name in enumerate(names):
            if name not in COUNTRIES and name not in self._names.get("Bloc", {}):
                self.errors.append(document.error((*path, index), f"{name} is no country or bloc", self._remedy(name)))
        return frozenset(names)

    def country(self, document: Document, path: Path, name: str) -> None:
        """One country, at `path` itself."""
        if name not in COUNTRIES:
            self.errors.append(document.error(path, f"{name} is no country", _country_remedy(name)))

    def countries(self, names: Iterable[str]) -> frozenset[str]:
        """The countries among `names`, and all those of the blocs among them."""
        return frozenset().union(*(self._inside(name) | {name} for name in names)) & COUNTRIES

    def subdivisions(self, document: Document, path: Path, codes: Sequence[str]) -> frozenset[str]:
        """ISO 3166-2 codes; one of no country is an error. Whether a country has the subdivision is not known here."""
        for index, code in enumerate(codes):
            country = code.partition("-")[0]
            if country not in COUNTRIES:
                remedy = _country_remedy(country)
                self.errors.append(document.error((*path, index), f"{country} is no country", remedy))
        return frozenset(codes)

    def jurisdictions(self, region: str) -> frozenset[str]:
        """The country that a region stands in and every bloc that the country belongs to."""
        return self._jurisdictions[region]

    def regions_in(self, places: Iterable[str]) -> frozenset[str]:
        """The regions that lie in any of these countries and blocs."""
        wanted = frozenset(places)
        return frozenset(region for region, spaces in self._jurisdictions.items() if spaces & wanted)

    def _check_bloc(self, document: Document, bloc: BlocDocument) -> None:
        if bloc.name in COUNTRIES:
            self.errors.append(document.error(("name",), f"{bloc.name} is a country's code", "choose another name"))
        self.places(document, ("members",), bloc.members)
        for index, member in enumerate(bloc.members):
            if bloc.name == member or bloc.name in self._inside(member):
                problem = f"{bloc.name} is a member of itself through {member}"
                self.errors.append(document.error(("members", index), problem, "remove one of the memberships"))

    def _inside(self, name: str) -> frozenset[str]:
        """Every country and bloc that belongs to a bloc, however deep; walked once, so that no nesting is too much."""
        if name not in self._unfolded:
            found: set[str] = set()
            ahead = [name]
            while ahead:
                new = self._members.get(ahead.pop(), frozenset()) - found
                found |= new
                ahead += new
            self._unfolded[name] = frozenset(found)
        return self._unfolded[name]

    def _remedy(self, name: str) -> str:
        if name in _NOT_ISO or name.upper() in COUNTRIES:
            return _country_remedy(name)
        return self._meant(name, self._names.get("Bloc", {}), "use ISO 3166-1 alpha-2 codes and names of blocs")

    def _meant(self, name: str, known: Iterable[str], otherwise: str) -> str:
        return suggest(name, known, otherwise) if len(self.errors) < MAX_SUGGESTIONS else otherwise


def _country_remedy(name: str) -> str:
    if name in _NOT_ISO:
        return _NOT_ISO[name]
    if name.upper() in COUNTRIES:
        return f"write {name.upper()}, in capitals"
    return "use its ISO 3166-1 alpha-2 code, such as DE"
