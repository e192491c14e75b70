//! grpc.health.v1, which load balancers ask: the gateway serves as long as it answers.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use hyper::http::{Request, Response};
use tonic::body::Body;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Status, codegen::BoxFuture};
use tonic_prost::ProstCodec;

use super::connection::{Caller, ended};

/// SERVING (grpc.health.v1, HealthCheckResponse).
const SERVING: i32 = 1;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

pub(super) async fn answer(request: Request<Body>) -> Response<Body> {
    let codec = ProstCodec::<HealthResponse, HealthRequest>::default();
    let mut grpc = tonic::server::Grpc::new(codec);
    match request.uri().path() {
        "/grpc.health.v1.Health/Check" => grpc.unary(Check, request).await,
        "/grpc.health.v1.Health/Watch" => grpc.server_streaming(Watch, request).await,
        path => {
            let method = path.rsplit('/').next().unwrap_or(path);
            Status::unimplemented(format!(
                "unknown method {method} for service grpc.health.v1.Health"
            ))
            .into_http()
        }
    }
}

/// etcd names no service but the whole server.
fn serving(request: &HealthRequest) -> Result<HealthResponse, Status> {
    match request.service.as_str() {
        "" => Ok(HealthResponse { status: SERVING }),
        _ => Err(Status::not_found("unknown service")),
    }
}

struct Check;

impl UnaryService<HealthRequest> for Check {
    type Response = HealthResponse;
    type Future = BoxFuture<tonic::Response<HealthResponse>, Status>;

    fn call(&mut self, request: tonic::Request<HealthRequest>) -> Self::Future {
        Box::pin(async move { serving(request.get_ref()).map(tonic::Response::new) })
    }
}

struct Watch;

impl ServerStreamingService<HealthRequest> for Watch {
    type Response = HealthResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthResponse, Status>> + Send>>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<HealthRequest>) -> Self::Future {
        Box::pin(async move {
            let first = serving(request.get_ref())?;
            let caller = request.extensions().get::<Arc<Caller>>().cloned();
            let end = stream::once(async move {
                match caller {
                    Some(caller) => caller.ends().await,
                    None => std::future::pending().await,
                }
                Err(ended())
            });
            let responses: Self::ResponseStream = Box::pin(stream::iter([Ok(first)]).chain(end));
            Ok(tonic::Response::new(responses))
        })
    }
}
