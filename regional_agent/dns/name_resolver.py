"""Answers the requests of PowerDNS from the policy in force, the newest plans, and the state of regions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Final

from penstock.dns.client_subnet import subnet_of
from penstock.dns.name_answer import EvenDraws, NameServerView, Question, answer_name
from penstock.dns.remote_backend import (
    FALSE,
    SERVFAIL,
    TRUE,
    Message,
    Parameters,
    domain_info,
    records_line,
    result_line,
)
from penstock.dns.zone_records import empty_names, empty_record, last_resort_records, zone_of, zone_records
from penstock.policy.geography import NOWHERE
from penstock.policy.kinds.dns_names import DnsName
from penstock.policy.policy import Policy
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.client_location import Locator

DNSSEC: Final = {"NSEC3PARAM": ["1 0 0 -"], "NSEC3NARROW": ["1"]}
"""How PowerDNS denies names of a signed zone: by hashes around the name (RFC 7129), since it cannot list the names.
Without effect on a zone that is not signed, since no other backend has a key of it."""

LAST_RESORT: Final = "last_resort"
NONE: Final = "none"
"""Labels of answers without a region."""


class NameResolver:
    """Answers one request at a time; holds no state but counters and what it computes of the policy."""

    def __init__(
        self,
        config: ActiveConfig,
        locator: Locator,
        fleet: Callable[[Policy], NameServerView],
        rng: Random,
        on_answer: Callable[[str, str], None],
    ) -> None:
        """Create a resolver.

        Args:
            config: the policy in force.
            locator: locates client subnets and resolvers.
            fleet: returns the agent's current view of the fleet.
            on_answer: called with each name of the policy that was answered, and with the region, LAST_RESORT or NONE.
        """
        self._config = config
        self._locator = locator
        self._fleet = fleet
        self._rng = rng
        self._on_answer = on_answer
        self._empty: tuple[Policy, frozenset[str]] | None = None
        self._draws: defaultdict[str, EvenDraws] = defaultdict(lambda: EvenDraws(rng))
        """By name of the policy."""

    def answer(self, message: Message) -> bytes:
        """Return the answer to one request of PowerDNS."""
        match message.method:
            case "lookup":
                return self._lookup(message.parameters)
            case "initialize":
                return TRUE
            case "getAllDomains":
                return result_line([domain_info(zone) for zone in self._zones()])
            case "getDomainInfo":
                zone = message.parameters.name.lower().removesuffix(".")
                return result_line(domain_info(zone)) if zone in self._zones() else FALSE
            case "getAllDomainMetadata":
                return result_line(DNSSEC)
            case "getDomainMetadata":
                return result_line(DNSSEC.get(message.parameters.kind, []))
        # Transfers (`list`), changes and keys: this backend has none of them.
        return FALSE

    def _zones(self) -> list[str]:
        policy = self._config.policy
        return [] if policy is None else list(policy.dns_zones or {})

    def _lookup(self, asked: Parameters) -> bytes:
        policy = self._config.policy
        if policy is None:
            return SERVFAIL
        qname = asked.qname.lower().removesuffix(".")
        name = (policy.dns_names or {}).get(qname)
        if name is not None:
            # PowerDNS looks for a zone of each name that it is asked for.
            return FALSE if asked.qtype == "SOA" else self._resolve(policy, name, asked)
        zone = zone_of(policy.dns_zones or {}, qname)
        records = [] if zone is None else zone_records(zone, qname)
        if not records and qname in self._empty_names(policy):
            records = [empty_record(qname)]
        # PowerDNS refuses other records than the SOA where it asks for this one alone.
        return records_line([record for record in records if asked.qtype in (record.kind, "ANY")], 0)

    def _empty_names(self, policy: Policy) -> frozenset[str]:
        """The names without records that exist, computed once for a policy: queries of strangers ask for any name."""
        if self._empty is None or self._empty[0] is not policy:
            self._empty = policy, empty_names(policy.dns_zones or {}, policy.dns_names or {})
        return self._empty[1]

    def _resolve(self, policy: Policy, name: DnsName, asked: Parameters) -> bytes:
        subnet = subnet_of(asked.remote, asked.real_remote)
        near, client = NOWHERE, NOWHERE
        if subnet.network is not None:
            near = self._locator.locate(subnet.network.network_address)
            client = self._locator.locate_network(subnet.network) if subnet.is_client else NOWHERE
        question = Question(client, near)
        scope_bits = subnet.network.prefixlen if subnet.is_client and subnet.network is not None else 0
        answer = answer_name(policy, name, question, self._fleet(policy))
        region = answer.draw(self._draws[name.name])
        if region is not None:
            self._on_answer(name.name, region)
            return records_line(answer.records(policy, name, region, self._rng), scope_bits)
        records = last_resort_records(name)
        self._on_answer(name.name, LAST_RESORT if records else NONE)
        return records_line(records, scope_bits) if records else SERVFAIL
