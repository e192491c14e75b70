//! What a name asks for, and the records that answer it. Pure; randomness is passed in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use causeway_registry::{Endpoint, ServiceName};
use hickory_server::proto::op::ResponseCode;
use hickory_server::proto::rr::rdata::{A, AAAA, SOA, SRV};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use rand::Rng;
use rand::seq::SliceRandom as _;

/// Records in one answer: more than any resolver uses, and less than a TCP answer holds.
const MOST_ANSWERS: usize = 2_000;
/// Answers up to which their targets' addresses are sent along: more would not fit beside them.
const FEW_ANSWERS: usize = 8;

/// An endpoint, as DNS shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) scheme: String,
    pub(super) weight: u16,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    Address(IpAddr),
    /// Somebody else's name: good for SRV, and no address.
    Name(Name),
    /// Neither.
    Other,
}

impl Target {
    pub(super) fn new(endpoint: &Endpoint, weight: u16) -> Self {
        let host = endpoint.host.trim_matches(['[', ']']);
        let host = match host.parse() {
            Ok(address) => Host::Address(address),
            Err(_) => match Name::from_ascii(host) {
                Ok(mut name) => {
                    name.set_fqdn(true);
                    Host::Name(name)
                }
                Err(_) => Host::Other,
            },
        };
        Target {
            host,
            port: endpoint.port,
            scheme: endpoint.scheme.to_lowercase(),
            weight,
        }
    }
}

/// What a name in the zone asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Service {
        name: ServiceName,
        /// Of which scheme; all of them when None, none when empty.
        scheme: Option<String>,
    },
    Namespace(String),
    Address(IpAddr),
    Apex,
    /// A name with names below it.
    Between,
    /// A form that no name has.
    Nothing,
}

/// What there is under it.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Service {
        targets: Arc<Vec<Target>>,
        scheme: Option<String>,
    },
    Address(IpAddr),
    Apex,
    /// The name, without records.
    Nothing,
    /// Not even that.
    Unknown,
}

/// The answer, without the question.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) code: ResponseCode,
    pub(super) authoritative: bool,
    pub(super) answers: Vec<Record>,
    pub(super) authority: Vec<Record>,
    pub(super) additional: Vec<Record>,
}

impl Answer {
    pub(super) fn failed(code: ResponseCode) -> Self {
        Answer {
            code,
            authoritative: false,
            answers: Vec::new(),
            authority: Vec::new(),
            additional: Vec::new(),
        }
    }
}

/// The zone.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    origin: Name,
    ttl_s: u32,
}

impl Zone {
    pub(super) fn new(origin: Name, ttl_s: u32) -> Self {
        Zone { origin, ttl_s }
    }

    /// None: not in the zone.
    pub(super) fn read(&self, name: &Name) -> Option<Asked> {
        if !self.origin.zone_of(name) {
            return None;
        }
        let count = usize::from(name.num_labels() - self.origin.num_labels());
        let labels: Option<Vec<String>> = name
            .iter()
            .take(count)
            .map(|label| String::from_utf8(label.to_vec()).ok())
            .collect();
        let Some(labels) = labels else {
            return Some(Asked::Nothing);
        };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        Some(match labels.as_slice() {
            [] => Asked::Apex,
            [rest @ .., svc] if svc.eq_ignore_ascii_case("svc") => read_service(rest),
            [address @ .., addr] if addr.eq_ignore_ascii_case("addr") => match address {
                [] => Asked::Between,
                [address] => read_address(address).map_or(Asked::Nothing, Asked::Address),
                _ => Asked::Nothing,
            },
            _ => Asked::Nothing,
        })
    }

    pub(super) fn answer(
        &self,
        name: &Name,
        kind: RecordType,
        found: &Found,
        rng: &mut impl Rng,
    ) -> Answer {
        let mut answers = match found {
            Found::Service { targets, scheme } => self.records(name, kind, targets, scheme, rng),
            Found::Address(ip) => vec![self.address(name, *ip)],
            Found::Apex => vec![self.soa()],
            Found::Nothing | Found::Unknown => Vec::new(),
        };
        answers.retain(|record| kind == RecordType::ANY || record.record_type() == kind);
        let mut additional = Vec::new();
        if answers.len() <= FEW_ANSWERS
            && let Found::Service { targets, .. } = found
        {
            for target in targets.iter() {
                let Host::Address(ip) = target.host else {
                    continue;
                };
                let host = self.host(&target.host);
                let named = |record: &Record| match (&record.data, &host) {
                    (RData::SRV(srv), Some(host)) => srv.target == *host,
                    _ => false,
                };
                if let Some(host) = &host
                    && answers.iter().any(named)
                {
                    additional.push(self.address(host, ip));
                }
            }
            additional.dedup();
        }
        Answer {
            code: match found {
                Found::Unknown => ResponseCode::NXDomain,
                _ => ResponseCode::NoError,
            },
            authoritative: true,
            // Says how long the absence may be kept (RFC 2308).
            authority: if answers.is_empty() {
                vec![self.soa()]
            } else {
                Vec::new()
            },
            answers,
            additional,
        }
    }

    fn records(
        &self,
        name: &Name,
        kind: RecordType,
        targets: &[Target],
        scheme: &Option<String>,
        rng: &mut impl Rng,
    ) -> Vec<Record> {
        let mut records = Vec::new();
        let wanted = |target: &&Target| {
            let host = !matches!(target.host, Host::Other);
            let scheme = scheme.as_deref();
            host && scheme.is_none_or(|s| !s.is_empty() && s == target.scheme)
        };
        for target in targets.iter().filter(wanted) {
            // A name with a scheme is one of services, not of addresses (RFC 2782).
            if let (Host::Address(ip), None) = (&target.host, scheme) {
                records.push(self.address(name, *ip));
            }
            if let (Some(host), 1..) = (self.host(&target.host), target.port) {
                let srv = SRV::new(0, target.weight, target.port, host);
                records.push(self.record(name, RData::SRV(srv)));
            }
        }
        records.retain(|record| kind == RecordType::ANY || record.record_type() == kind);
        records.sort();
        records.dedup();
        let (chosen, _) = records.partial_shuffle(rng, MOST_ANSWERS);
        chosen.to_vec()
    }

    fn record(&self, name: &Name, data: RData) -> Record {
        Record::from_rdata(name.clone(), self.ttl_s, data)
    }

    fn address(&self, name: &Name, ip: IpAddr) -> Record {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        self.record(name, data)
    }

    /// The name that SRV shows. None: it does not fit into a name.
    fn host(&self, host: &Host) -> Option<Name> {
        match host {
            Host::Name(name) => Some(name.clone()),
            Host::Address(ip) => {
                let label = match ip {
                    IpAddr::V4(ip) => ip.to_string().replace('.', "-"),
                    // All eight parts: `::` would begin or end a label with a hyphen.
                    IpAddr::V6(ip) => ip.segments().map(|part| format!("{part:x}")).join("-"),
                };
                let labels = [label.as_bytes(), b"addr"];
                let name = Name::from_labels(labels).ok()?;
                name.append_domain(&self.origin).ok()
            }
            Host::Other => None,
        }
    }

    fn soa(&self) -> Record {
        let at = |label: &str| {
            let name = self.origin.prepend_label(label);
            name.unwrap_or_else(|_| self.origin.clone())
        };
        let ttl = i32::try_from(self.ttl_s).unwrap_or(1).max(1);
        let soa = SOA::new(at("ns"), at("hostmaster"), 1, ttl, ttl, ttl, self.ttl_s);
        self.record(&self.origin, RData::SOA(soa))
    }
}

fn read_service(labels: &[&str]) -> Asked {
    match labels {
        [] => Asked::Between,
        [namespace] => Asked::Namespace((*namespace).into()),
        [service @ .., namespace] => {
            let (scheme, service) = match service {
                [scheme, proto, service @ ..]
                    if scheme.starts_with('_')
                        && ["_tcp", "_udp"]
                            .iter()
                            .any(|p| proto.eq_ignore_ascii_case(p)) =>
                {
                    (Some(scheme[1..].to_lowercase()), service)
                }
                // Between `_http._tcp` and the service.
                [proto, service @ ..]
                    if ["_tcp", "_udp"]
                        .iter()
                        .any(|p| proto.eq_ignore_ascii_case(p)) =>
                {
                    (Some(String::new()), service)
                }
                service => (None, service),
            };
            if service.is_empty() {
                return Asked::Nothing;
            }
            Asked::Service {
                name: ServiceName::new(*namespace, service.join(".")),
                scheme,
            }
        }
    }
}

fn read_address(label: &str) -> Option<IpAddr> {
    let parts = label.split('-').count();
    match parts {
        4 => label.replace('-', ".").parse().map(Ipv4Addr::into).ok(),
        8 => label.replace('-', ":").parse().map(Ipv6Addr::into).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone() -> Zone {
        Zone::new(Name::from_ascii("causeway.").unwrap(), 1)
    }

    #[test]
    fn names_say_what_is_asked() {
        let service = |namespace: &str, service: &str, scheme: Option<&str>| {
            Some(Asked::Service {
                name: ServiceName::new(namespace, service),
                scheme: scheme.map(Into::into),
            })
        };
        for (name, asked) in [
            (
                "cart.default.svc.causeway.",
                service("default", "cart", None),
            ),
            (
                "Cart.Default.SVC.Causeway.",
                service("Default", "Cart", None),
            ),
            (
                "com.example.Cart.shop.svc.causeway.",
                service("shop", "com.example.Cart", None),
            ),
            (
                "cart.my\\.shop.svc.causeway.",
                service("my.shop", "cart", None),
            ),
            (
                "_HTTP._tcp.cart.default.svc.causeway.",
                service("default", "cart", Some("http")),
            ),
            (
                "default.svc.causeway.",
                Some(Asked::Namespace("default".into())),
            ),
            ("svc.causeway.", Some(Asked::Between)),
            ("addr.causeway.", Some(Asked::Between)),
            ("causeway.", Some(Asked::Apex)),
            (
                "10-0-0-1.addr.causeway.",
                Some(Asked::Address("10.0.0.1".parse().unwrap())),
            ),
            (
                "2001-db8-0-0-0-0-0-1.addr.causeway.",
                Some(Asked::Address("2001:db8::1".parse().unwrap())),
            ),
            ("10-0-0-256.addr.causeway.", Some(Asked::Nothing)),
            ("x.10-0-0-1.addr.causeway.", Some(Asked::Nothing)),
            ("cart.causeway.", Some(Asked::Nothing)),
            ("_http._tcp.default.svc.causeway.", Some(Asked::Nothing)),
            ("cart.default.svc.example.", None),
            ("notcauseway.", None),
        ] {
            let parsed = Name::from_ascii(name).unwrap();
            assert_eq!(zone().read(&parsed), asked, "{name}");
        }
    }

    #[test]
    fn an_address_is_found_under_the_name_that_srv_gives_it() {
        for ip in ["10.0.0.1", "::1", "fe80::", "2001:db8::ff00:42:8329"] {
            let ip: IpAddr = ip.parse().unwrap();
            let name = zone().host(&Host::Address(ip)).unwrap();
            assert_eq!(zone().read(&name), Some(Asked::Address(ip)), "{name}");
        }
    }
}
