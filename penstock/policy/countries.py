"""The country codes that a bundle, and a proxy that says where a client is, may use: ISO 3166-1 alpha-2 as officially
assigned, and XK.
"""

from __future__ import annotations

_OFFICIALLY_ASSIGNED = """
    AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ
    CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO
    FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE
    JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO
    MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW
    PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM
    TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""

# XK is user-assigned, not ISO's, and what GeoIP databases answer for Kosovo.
COUNTRIES = frozenset(_OFFICIALLY_ASSIGNED.split()) | {"XK"}


def country_flaw(code: str) -> str | None:
    """What is wrong with what somebody gives as a client's country; None where nothing is.

    A code that no rule can name would be neither in a bloc nor unknown, and the answer about governed requests wrong.
    """
    if code in COUNTRIES:
        return None
    remedy = f"write {code.upper()}" if code.upper() in COUNTRIES else "leave it out where nobody knows"
    return f"{code!r} is no country of ISO 3166-1 (alpha-2, such as DE); {remedy}"
