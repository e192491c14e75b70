//! causeway-registry-client: registers and discovers instances through a member's gRPC API.
//!
//! - A client keeps one stream to one member, taken at random. It renews all that the client registered by one ping
//!   per heartbeat, and goes to another member when it breaks, when three heartbeats stay without an answer, or when
//!   the member asks for it; everything wanted goes along.
//! - [`Client::register`] keeps an instance registered, and registers it again wherever it was lost;
//!   [`Registration::deregister`] takes it away.
//! - [`Client::service`] gives a live view of a service: fed by the stream, refreshed in full from time to time, kept
//!   in a list of the services used last, and on disk for the case that no member answers at the start.
//!   [`Service::pick_random`] and [`Service::pick_round_robin`] choose.
//! - Members are a list of addresses or names; a name may stand for many addresses.
//! - How often it is heard, how many services it keeps, and how often it fetches them in full is the members' to say,
//!   at any time.
//! - A list that loses too much at once, without the owners having said so, is not believed: see
//!   [`view`].
//!
//! What this crate must not know: anything of a member but its gRPC API.
//!
//! ```no_run
//! # async fn example() -> Result<(), causeway_registry_client::Error> {
//! use causeway_registry_client::{Client, ClientConfig, Instance};
//!
//! let client = Client::new(ClientConfig::new(["127.0.0.1:8501"]))?;
//! let me = Instance::new("10.0.0.1:8080").endpoint("http", "10.0.0.1", 8080);
//! let registration = client.register("cart", me).await?;
//!
//! let tills = client.service("till").await?;
//! if let Some(till) = tills.pick_round_robin() {
//!     println!("{:?}", till.endpoints);
//! }
//! registration.deregister().await
//! # }
//! ```

mod client;
mod discovery;
mod disk;
mod link;
mod members;
mod registration;
mod session;
pub mod view;

pub use causeway_registry::Endpoint;
pub use causeway_registry::api::{Instance as Registered, ServiceList};
pub use client::{Client, ClientConfig, Error};
pub use discovery::Service;
pub use registration::{Instance, Registration, RegistrationState};
pub use view::Snapshot;
