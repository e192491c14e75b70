//! The registry over DNS: A, AAAA and SRV, on UDP and TCP.
//!
//! | name | has |
//! | --- | --- |
//! | `SERVICE.NAMESPACE.svc.ZONE` | A and AAAA: the addresses of the service's endpoints; SRV: its endpoints |
//! | `_SCHEME._tcp.SERVICE.NAMESPACE.svc.ZONE` (`_udp` likewise) | SRV: the endpoints with that scheme |
//! | `ADDRESS.addr.ZONE`, with `-` for each `.` or `:` | A or AAAA: that address; what SRV names for an endpoint without a host name |
//!
//! SERVICE may have dots (`com.example.Cart`); dots within a namespace are written `\.`. Case does not matter unless
//! two services differ in it alone: then the exact one is meant.
//!
//! A service that is known has its name even while it has no instance: the answer is empty (NODATA), never
//! NXDOMAIN, which resolvers keep for the whole name. Held instances are there as in every other view. A member
//! that has not caught up says SERVFAIL instead of nothing, so that resolvers ask another one.
//!
//! UDP answers have 512 bytes at most, or with EDNS what the client takes, at most 1,232 (no fragments); what does
//! not fit is left out with the bit TC, and the client comes back by TCP. Answers are in random order.

mod answer;
mod names;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use causeway_registry::{CatchUp, Endpoint, Revision, ServiceName};
use hickory_server::net::NetError;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Edns, MessageType, Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::{DNSClass, Name};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use hickory_server::{Server, net::xfer::Protocol};
use lru::LruCache;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use crate::access::RegistryAccess;
use answer::{Answer, Found, Target, Zone};
use names::Names;

/// Bytes of a UDP answer to a client without EDNS (RFC 1035, 4.2.1).
const PLAIN: u16 = 512;
/// The most that a UDP answer takes: fits every path without fragments (DNS flag day 2020).
const LARGEST: u16 = 1_232;
/// How long a TCP connection may be idle.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Answers that wait for one TCP connection.
const TCP_ANSWERS: usize = 32;
/// How often a port is looked for that is free for both UDP and TCP.
const BIND_TRIES: usize = 16;
/// Services whose endpoints are kept ready.
const KEPT: usize = 4_096;

/// Settings of a DNS port.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// What all names end in: `causeway.` by default.
    pub zone: String,
    /// How long resolvers may keep an answer, in seconds, 0 to 5.
    pub ttl_s: u32,
}

impl Default for DnsConfig {
    fn default() -> Self {
        DnsConfig {
            zone: "causeway.".into(),
            ttl_s: 1,
        }
    }
}

/// The settings of a DNS port are wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DnsConfigError {
    /// Not a domain name that leaves room for services.
    #[error("zone: {0:?} is not a domain name of at most 100 bytes")]
    Zone(String),
    /// Longer than a registry's answer may be kept.
    #[error("ttl: 0 to 5 s, not {0}")]
    Ttl(u32),
}

/// Binds the two sockets of a DNS port. With port 0 both take the same free one.
pub async fn bind(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    for _ in 0..BIND_TRIES {
        let tcp = TcpListener::bind(address).await?;
        match UdpSocket::bind(tcp.local_addr()?).await {
            Ok(udp) => return Ok((udp, tcp)),
            // Free for TCP, and taken for UDP.
            Err(_) if address.port() == 0 => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// A DNS port over a registry.
pub struct Dns {
    access: Arc<dyn RegistryAccess>,
    zone: Zone,
    names: Arc<Names>,
    kept: Mutex<LruCache<ServiceName, Kept>>,
}

/// A service's endpoints, and the mark they are at.
type Kept = (Revision, Arc<Vec<Target>>);

impl Dns {
    /// With the default settings replaced by `config`. To be made in a runtime.
    pub fn new(
        access: Arc<dyn RegistryAccess>,
        config: &DnsConfig,
    ) -> Result<Self, DnsConfigError> {
        let zone = check(config)?;
        Ok(Dns {
            names: Names::follow(access.clone()),
            access,
            zone,
            kept: Mutex::new(LruCache::new(
                NonZeroUsize::new(KEPT).unwrap_or(NonZeroUsize::MIN),
            )),
        })
    }

    /// Serves both sockets until `stop` becomes true or its sender is gone.
    pub async fn serve(self, udp: UdpSocket, tcp: TcpListener, mut stop: watch::Receiver<bool>) {
        let mut server = Server::new(self);
        server.register_socket(udp);
        server.register_listener(tcp, TCP_IDLE, TCP_ANSWERS);
        let ended = {
            let done = server.block_until_done();
            tokio::select! {
                ended = done => Some(ended),
                _ = stop.wait_for(|stop| *stop) => None,
            }
        };
        let ended = match ended {
            Some(ended) => ended,
            None => server.shutdown_gracefully().await,
        };
        if let Err(error) = ended {
            tracing::error!(%error, "the DNS port has failed");
        }
    }

    fn find(&self, name: &ServiceName) -> Arc<Vec<Target>> {
        let since = self.kept.lock().get(name).map(|(revision, _)| *revision);
        let (revision, records) = match self.access.catch_up(&name.namespace, &name.service, since)
        {
            CatchUp::Current { .. } => match self.kept.lock().get(name) {
                Some((_, targets)) => return targets.clone(),
                None => (
                    Revision::default(),
                    self.access.by_service(&name.namespace, &name.service),
                ),
            },
            CatchUp::Full { revision, records } => (revision, records),
            CatchUp::Delta { revision, .. } => (
                revision,
                self.access.by_service(&name.namespace, &name.service),
            ),
        };
        let mut targets: Vec<Target> = records
            .iter()
            .flat_map(|record| {
                let weight = record.body.attributes.get("weight");
                let weight = weight.and_then(|w| w.parse().ok()).unwrap_or(1);
                let endpoints = record.body.endpoints.iter();
                endpoints.map(move |endpoint: &Endpoint| Target::new(endpoint, weight))
            })
            .collect();
        // Several registrations may stand for one instance.
        targets.sort();
        targets.dedup();
        let targets = Arc::new(targets);
        if revision != Revision::default() {
            let mut kept = self.kept.lock();
            kept.put(name.clone(), (revision, targets.clone()));
        }
        targets
    }

    fn answer(&self, name: &Name, request: &Request) -> Result<Answer, ResponseCode> {
        let info = request.request_info().map_err(|_| ResponseCode::FormErr)?;
        if !matches!(info.query.query_class(), DNSClass::IN | DNSClass::ANY) {
            return Err(ResponseCode::Refused);
        }
        let warming = self.access.warming();
        let found = match self.zone.read(name) {
            None => return Err(ResponseCode::Refused),
            Some(answer::Asked::Service { name, scheme }) => match self.names.find(&name) {
                names::Known::Service(name) => Found::Service {
                    targets: self.find(&name),
                    scheme,
                },
                names::Known::Between => Found::Nothing,
                names::Known::Several => return Err(ResponseCode::ServFail),
                names::Known::Unknown => Found::Unknown,
            },
            Some(answer::Asked::Namespace(namespace)) => {
                if self.names.has_namespace(&namespace) {
                    Found::Nothing
                } else {
                    Found::Unknown
                }
            }
            Some(answer::Asked::Address(ip)) => Found::Address(ip),
            Some(answer::Asked::Apex) => Found::Apex,
            Some(answer::Asked::Between) => Found::Nothing,
            Some(answer::Asked::Nothing) => Found::Unknown,
        };
        let empty = match &found {
            Found::Service { targets, .. } => targets.is_empty(),
            Found::Unknown => true,
            _ => false,
        };
        if warming && empty {
            return Err(ResponseCode::ServFail);
        }
        Ok(self
            .zone
            .answer(name, info.query.query_type(), &found, &mut rand::rng()))
    }
}

fn check(config: &DnsConfig) -> Result<Zone, DnsConfigError> {
    if config.ttl_s > 5 {
        return Err(DnsConfigError::Ttl(config.ttl_s));
    }
    let wrong = || DnsConfigError::Zone(config.zone.clone());
    let mut origin = Name::from_ascii(&config.zone).map_err(|_| wrong())?;
    origin.set_fqdn(true);
    if origin.is_root() || origin.len() > 100 {
        return Err(wrong());
    }
    Ok(Zone::new(origin, config.ttl_s))
}

impl DnsConfig {
    /// What is wrong with the settings.
    pub fn fault(&self) -> Option<DnsConfigError> {
        check(self).err()
    }
}

#[async_trait::async_trait]
impl RequestHandler for Dns {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut handle: R,
    ) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = false;
        let name = request
            .request_info()
            .map(|info| info.query.original().name().clone());
        let version = request.edns.as_ref().map_or(0, Edns::version);
        let answer = match (request.metadata.message_type, request.metadata.op_code) {
            (MessageType::Response, _) => Err(ResponseCode::FormErr),
            (_, OpCode::Query) if version > 0 => Err(ResponseCode::BADVERS),
            (_, OpCode::Query) => match &name {
                Ok(name) => self.answer(name, request),
                Err(_) => Err(ResponseCode::FormErr),
            },
            _ => Err(ResponseCode::NotImp),
        };
        let answer = answer.unwrap_or_else(Answer::failed);
        metadata.response_code = answer.code;
        metadata.authoritative = answer.authoritative;

        // A UDP answer is bounded by its own EDNS record, and by 512 bytes without one.
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            let takes = asked.max_payload().clamp(PLAIN, LARGEST);
            edns.set_max_payload(takes).set_version(0);
            edns.set_rcode_high(answer.code.high());
            edns
        });
        let mut response = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            response.edns(edns);
        }
        let response = response.build(
            metadata,
            &answer.answers,
            [],
            &answer.authority,
            &answer.additional,
        );
        match handle.send_response(response).await {
            Ok(info) => info,
            Err(error) => unsent(request, &error),
        }
    }
}

fn unsent(request: &Request, error: &NetError) -> ResponseInfo {
    let over = match request.protocol() {
        Protocol::Udp => "UDP",
        _ => "TCP",
    };
    tracing::debug!(client = %request.src(), over, %error, "a DNS answer cannot be sent");
    let metadata = Metadata::new(
        request.metadata.id,
        MessageType::Response,
        request.metadata.op_code,
    );
    hickory_server::proto::op::Header {
        metadata,
        counts: Default::default(),
    }
    .into()
}

#[cfg(test)]
mod tests;
