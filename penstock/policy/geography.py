"""Locations, country codes, blocs of countries, and estimated round trips between locations."""

from __future__ import annotations

from collections.abc import Mapping
from math import asin, cos, radians, sin, sqrt
from typing import Final

import msgspec

EARTH_RADIUS_KM = 6371.0088
"""Mean radius, IUGG 1980."""

FIBRE_KM_PER_MS = 204.0
"""Speed of light in fibre (km/ms): c / 1.468, the group index of G.652 fibre at 1550 nm."""

PATH_STRETCH = 1.6
"""Ratio of the length of a cable path to the great circle; 1.5-2 is usual for inter-continental routes (Bozkurt et al.,
PAM 2017)."""

ORDER_STEP_MS = 1_000.0
"""Distance (ms) added per position in a spillover order: more than the effect of prices, queues and any distance on
Earth."""


_OFFICIALLY_ASSIGNED = """
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ
    CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO
    FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE
    JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO
    MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW
    PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM
    TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""

# XK is user-assigned, not part of ISO 3166-1; GeoIP databases return it for Kosovo.
COUNTRIES = frozenset(_OFFICIALLY_ASSIGNED.split()) | {"XK"}
"""Accepted country codes: ISO 3166-1 alpha-2 as officially assigned, and XK."""

# The 27 member states: https://european-union.europa.eu/principles-countries-history/eu-countries_en
_MEMBER_STATES = "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK"
_EU = frozenset(_MEMBER_STATES.split())

BLOCS: Final[Mapping[str, frozenset[str]]] = {
    "EU": _EU,
    # Parts of member states that have codes of their own in ISO 3166-1, and so in GeoIP databases, where EU law applies
    # (Articles 349 and 355 TFEU): Aland, French Guiana, Guadeloupe, Saint Martin, Martinique, Reunion, Mayotte.
    "EU-TERRITORIES": frozenset(["AX", "GF", "GP", "MF", "MQ", "RE", "YT"]),
    # The EU, and the EFTA states that the EEA Agreement joins to it: https://www.efta.int/eea
    "EEA": _EU | {"IS", "LI", "NO"},
    # https://www.efta.int/about-efta
    "EFTA": frozenset(["CH", "IS", "LI", "NO"]),
    # https://www.gcc-sg.org/en-us/AboutGCC/MemberStates
    "GCC": frozenset(["AE", "BH", "KW", "OM", "QA", "SA"]),
}
"""Blocs that every bundle has, by name: their countries (ISO 3166-1 alpha-2). Only unions of states by treaty: lists
that an authority changes, such as countries of adequate protection (Article 45 GDPR), belong in a bundle."""


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """Location of a client; unknown fields are None and never guessed."""

    country: str | None = None
    """ISO 3166-1 alpha-2, upper case."""
    subdivision: str | None = None
    """ISO 3166-2 without the country part, such as "CA" for California."""
    latitude_deg: float | None = None
    longitude_deg: float | None = None


NOWHERE = Location()


def great_circle_km(a_lat_deg: float, a_lon_deg: float, b_lat_deg: float, b_lon_deg: float) -> float:
    """Distance over the surface by the haversine formula (Sinnott 1984), accurate to about 0.5 %."""
    a_lat, a_lon, b_lat, b_lon = map(radians, (a_lat_deg, a_lon_deg, b_lat_deg, b_lon_deg))
    half_chord_sq = sin((b_lat - a_lat) / 2) ** 2 + cos(a_lat) * cos(b_lat) * sin((b_lon - a_lon) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * asin(min(1.0, sqrt(half_chord_sq)))


def estimated_rtt_ms(distance_km: float) -> float:
    """The expected round trip (ms) over `distance_km`: fibre of stretched length both ways, plus 1 ms of equipment."""
    return 1.0 + 2 * distance_km * PATH_STRETCH / FIBRE_KM_PER_MS


def lifted_ms(plain_ms: dict[str, float], origin: str, order: tuple[str, ...]) -> dict[str, float]:
    """Distances (ms) from an origin, changed so that the regions of `order` are its nearest, in that order."""
    lifted = {origin: plain_ms[origin]}
    last_ms = plain_ms[origin]
    for server in order:
        if server in plain_ms and server != origin:
            last_ms = lifted[server] = max(plain_ms[server], last_ms + ORDER_STEP_MS)
    beyond_ms = last_ms + ORDER_STEP_MS
    return {server: lifted.get(server, beyond_ms + ms) for server, ms in plain_ms.items()}


def country_error(code: str) -> str | None:
    """Error and remedy for an invalid country of a client; None for a valid one.

    An invalid code matches no bloc and does not count as unknown, so a governing rule would not refuse the request.
    """
    if code in COUNTRIES:
        return None
    remedy = f"write {code.upper()}" if code.upper() in COUNTRIES else "leave it out where it is unknown"
    return f"{code!r} is no country of ISO 3166-1 (alpha-2, such as DE); {remedy}"
