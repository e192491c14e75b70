//! A member that says what a test wants, and the client's answer to it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use causeway_registry_client::{Client, ClientConfig};
use causeway_registry_proto::codec::{ToClient, Update};
use causeway_registry_proto::server::{Registry, RegistryServer};
use causeway_registry_proto::v1::{self, client_message as ask, server_message as told};
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::{set, shown, until};

/// Its stream lost a change: watchers see `a`, and whoever asks for the list sees `a` and `b`.
#[derive(Clone, Default)]
struct Forgetful {
    asked: Arc<AtomicU32>,
}

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn list(number: u64, names: &[&str]) -> v1::ServiceUpdate {
    let changed = names.iter().map(|name| v1::Instance {
        id: format!("native:default/cart/{name}"),
        instance: (*name).into(),
        store: v1::Store::Native.into(),
        health: v1::Health::Live.into(),
        stamp: Some(v1::Stamp { hlc: 1, member: 1 }),
        ..v1::Instance::default()
    });
    v1::ServiceUpdate {
        namespace: "default".into(),
        service: "cart".into(),
        revision: Some(v1::Revision {
            incarnation: 7,
            number,
        }),
        full: true,
        changed: changed.collect(),
        ..v1::ServiceUpdate::default()
    }
}

impl Forgetful {
    fn answer(&self, message: v1::ClientMessage) -> Vec<v1::ServerMessage> {
        let own = |id, what| v1::ServerMessage {
            id,
            what: Some(what),
        };
        let id = message.id;
        match message.what {
            Some(ask::What::Hello(_)) => vec![own(
                id,
                told::What::Welcome(v1::Welcome {
                    token: 1,
                    ..v1::Welcome::default()
                }),
            )],
            Some(ask::What::Watch(watch)) => {
                let watching = v1::Watching {
                    namespace: watch.namespace,
                    service: watch.service,
                };
                vec![
                    own(id, told::What::Watching(watching)),
                    own(0, told::What::Update(list(1, &["a"]))),
                ]
            }
            Some(ask::What::Discover(_)) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                vec![own(id, told::What::Update(list(2, &["a", "b"])))]
            }
            Some(ask::What::Ping(ping)) => vec![own(
                id,
                told::What::Pong(v1::Pong {
                    token: ping.token,
                    ..v1::Pong::default()
                }),
            )],
            _ => Vec::new(),
        }
    }
}

#[tonic::async_trait]
impl Registry for Forgetful {
    type OpenStream = Sent<ToClient>;
    type WatchStream = Sent<Update>;

    async fn open(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let this = self.clone();
        let answers = request.into_inner().flat_map(move |message| {
            let answers = message.map(|m| this.answer(m)).unwrap_or_default();
            futures::stream::iter(answers.into_iter().map(|m| Ok(ToClient::Own(Box::new(m)))))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn register(
        &self,
        _: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::Registered>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn heartbeat(
        &self,
        _: Request<v1::InstanceRef>,
    ) -> Result<Response<v1::Registered>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn deregister(
        &self,
        _: Request<v1::InstanceRef>,
    ) -> Result<Response<v1::Deregistered>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn discover(&self, _: Request<v1::DiscoverRequest>) -> Result<Response<Update>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn list_services(
        &self,
        _: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ServicesReply>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unavailable("not asked for"))
    }

    async fn summary(
        &self,
        _: Request<v1::SummaryRequest>,
    ) -> Result<Response<v1::SummaryReply>, Status> {
        Err(Status::unavailable("not asked for"))
    }
}

#[tokio::test]
async fn what_a_stream_lost_comes_with_the_full_list() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let member = Forgetful::default();
    let server = tonic::transport::Server::builder()
        .add_service(RegistryServer::new(member.clone()))
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let mut config = ClientConfig::new([format!("http://{address}/")]);
    config.refresh_every = Some(Duration::from_millis(200));
    let client = Client::new(config).unwrap();
    let service = client.service("cart").await.unwrap();
    assert_eq!(shown(&service), set(["a"]));
    // The stream may be late only, so the list counts after some seconds.
    until("refreshed", || shown(&service) == set(["a", "b"])).await;
    assert!(member.asked.load(Ordering::Relaxed) >= 1);
    server.abort();
}
