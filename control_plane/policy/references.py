"""Resolves the names by which documents refer to each other, and blocs to their countries."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.configuration.strict_yaml import Path
from adapters.error_text import suggest
from control_plane.policy.bundle_errors import MAX_SUGGESTIONS, PolicyError
from control_plane.policy.catalogue import Catalogue
from control_plane.policy.documents import Document
from penstock.policy import fields
from penstock.policy.geography import BLOCS, COUNTRIES
from penstock.policy.kinds.regions import Bloc, Region

_NOT_ISO = {"UK": "the United Kingdom is GB in ISO 3166-1", "EL": "Greece is GR in ISO 3166-1"}


class References:
    """Looks up names in one catalogue; an unknown name becomes an error."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.errors: list[PolicyError] = []
        self._names = catalogue.names
        self._blocs = BLOCS.keys() | catalogue.names.get("Bloc", {}).keys()
        self._members = _built_in(catalogue) | {bloc.name: frozenset(bloc.members) for _, bloc in catalogue.of(Bloc)}
        self.complete = all(
            len(catalogue.of(shape)) == len(catalogue.names.get(kind, {}))
            for kind, shape in (("Region", Region), ("Bloc", Bloc))
        )
        """Whether every region and bloc is well-formed; otherwise jurisdictions are incomplete."""
        self._contents: dict[str, frozenset[str]] = {}
        for document, bloc in catalogue.of(Bloc):
            self._check_bloc(document, bloc)
        self._jurisdictions = {
            region.name: frozenset({region.country, *(b for b in self._members if region.country in self._inside(b))})
            for _, region in catalogue.of(Region)
        }

    def check_all(self, catalogue: Catalogue) -> None:
        """Check every name by which the documents of a catalogue refer to others."""
        for entries in catalogue.entries.values():
            for entry in entries:
                for path, kind, name in entry.references:
                    self.check(entry.document, path, kind, name)

    def check(self, document: Document, path: Path, kind: str, name: str) -> None:
        """Check one name at `path`."""
        if self.has(kind, name):
            return
        match kind:
            case fields.COUNTRY:
                problem, remedy = f"{name} is not a country", _country_remedy(name)
            case fields.SUBDIVISION:
                country = _country_of(name)
                problem, remedy = f"{country} is not a country", _country_remedy(country)
            case fields.PLACE:
                problem, remedy = f"{name} is not a country or bloc", self._remedy(name)
            case _:
                problem = f"there is no {kind} {name}"
                known = self._names.get(kind, {})
                remedy = self._suggestion(name, known, f"add a document of kind {kind} with that name")
        self.errors.append(document.error(path, problem, remedy))

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such a country, place or subdivision, or a document of `kind` has this name."""
        match kind:
            case fields.COUNTRY:
                return name in COUNTRIES
            case fields.SUBDIVISION:
                return _country_of(name) in COUNTRIES
            case fields.PLACE:
                return name in COUNTRIES or name in self._blocs
        return name in self._names.get(kind, {})

    def names_of(self, kind: str) -> Iterable[str]:
        """Return the names of every document of a kind."""
        return self._names.get(kind, {})

    def countries(self, names: Iterable[str]) -> frozenset[str]:
        """Return the countries among `names`, and the countries of the blocs among them."""
        return frozenset().union(*(self._inside(name) | {name} for name in names)) & COUNTRIES

    def jurisdictions(self, region: str) -> frozenset[str]:
        """Return a region's country and the blocs that contain it: those of the bundle, and built-in ones it names."""
        return self._jurisdictions[region]

    def regions_in(self, places: Iterable[str]) -> frozenset[str]:
        """Return the regions in any of these countries and blocs."""
        wanted = frozenset(places)
        return frozenset(region for region, spaces in self._jurisdictions.items() if spaces & wanted)

    def _check_bloc(self, document: Document, bloc: Bloc) -> None:
        if bloc.name in COUNTRIES:
            self.errors.append(document.error(("name",), f"{bloc.name} is a country's code", "choose another name"))
        for index, member in enumerate(bloc.members):
            if bloc.name == member or bloc.name in self._inside(member):
                problem = f"{bloc.name} is a member of itself through {member}"
                self.errors.append(document.error(("members", index), problem, "remove one of the memberships"))

    def _inside(self, name: str) -> frozenset[str]:
        """Return every country and bloc in a bloc, nested ones included; iterative, so that depth is not limited."""
        if name not in self._contents:
            found: set[str] = set()
            pending = [name]
            while pending:
                new = self._members.get(pending.pop(), frozenset()) - found
                found |= new
                pending += new
            self._contents[name] = frozenset(found)
        return self._contents[name]

    def _remedy(self, name: str) -> str:
        if name in _NOT_ISO or name.upper() in COUNTRIES:
            return _country_remedy(name)
        return self._suggestion(name, self._blocs, "use ISO 3166-1 alpha-2 codes and names of blocs")

    def _suggestion(self, name: str, known: Iterable[str], otherwise: str) -> str:
        return suggest(name, known, otherwise) if len(self.errors) < MAX_SUGGESTIONS else otherwise


def _built_in(catalogue: Catalogue) -> dict[str, frozenset[str]]:
    """Return the built-in blocs that the bundle names and does not define. The others are left out, so that the digest
    of a policy does not depend on blocs that the policy does not use."""
    named = {
        name
        for entries in catalogue.entries.values()
        for entry in entries
        for _, kind, name in entry.references
        if kind == fields.PLACE
    }
    return {name: BLOCS[name] for name in named & BLOCS.keys() - catalogue.names.get("Bloc", {}).keys()}


def _country_of(subdivision: str) -> str:
    return subdivision.partition("-")[0]


def _country_remedy(name: str) -> str:
    if name in _NOT_ISO:
        return _NOT_ISO[name]
    if name.upper() in COUNTRIES:
        return f"write {name.upper()}, in capitals"
    return "use its ISO 3166-1 alpha-2 code, such as DE"
