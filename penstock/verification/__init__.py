"""Does a policy keep its promises, whatever fails? Proved offline, with the functions that route live requests.

`verify.verify` is the door and says what is proved by what. Its parts: `situations` finds every kind of request that
the rules can tell apart; `reading` reads the rules anew, region by region, as the yardstick; `stages` asks each stage
of a decision what it may answer; `planning` asks the planners; `survival` takes regions away; `idle` finds rules that
do nothing.
"""
