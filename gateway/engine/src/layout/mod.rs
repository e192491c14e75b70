//! Layouts: how service frameworks spell registrations as keys and values.
//!
//! A layout is a declarative [`LayoutConfig`]: a key template, a way to read values, a claim and a
//! map. [`LayoutSet`] answers two questions. Which *class* has a key: a function of its path alone,
//! equal on every gateway, since it decides about the store. And what a record *is*: an
//! [`Instance`] when the layout's claim holds, else a companion, which is kept and passed on as
//! well. Records are read here and never written: key and value stay as their client wrote them.

mod builtin;
mod claim;
mod codec;
mod compiled;
mod description;
mod exclusion;
mod instance;
mod place;
mod set;
mod template;

#[cfg(test)]
mod tests;

pub use self::codec::{DecodeError, is_secret_name, redact};
pub use self::compiled::Layout;
pub use self::description::{
    LayoutConfig, LayoutError, LeaseRequirement, NodeRequirement, Parents, PassConfig, Read,
    Update, ValueKind, Write,
};
pub use self::exclusion::looks_like_lock;
pub use self::instance::{
    Class, Classified, Endpoint, Instance, LayoutId, MetaValue, NodeKind, Role, Status, scope_key,
};
pub use self::set::{LayoutSet, RangeClass, ServiceDir, Suggestion};

pub(crate) use self::codec::join_host_port;
