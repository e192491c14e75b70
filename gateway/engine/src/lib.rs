//! causeway-engine: every decision of the gateway, values in and values out.
//!
//! No socket, no clock, no async runtime: time and numbers are passed in, so that everything
//! here can be tested by tables of cases and replayed from a log.

pub mod converge;
pub mod convert;
pub mod core;
pub mod key_auth;
pub mod key_space;
pub mod key_watch;
pub mod layout;
pub mod merge;
pub mod order;
pub mod path;
pub mod phase;
pub mod protection;
pub mod route;
pub mod session;
pub mod watch;
pub mod znode_tree;
