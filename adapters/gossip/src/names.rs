//! What a raw key and value say in the registry's terms.

use std::sync::Arc;

use bytes::Bytes;
use causeway_backend::Owner;
use causeway_registry::RecordBody;

/// Describes an entry for the registry. The value must come out as it went in.
pub type Describe = Arc<dyn Fn(&Bytes, &Bytes, Owner) -> RecordBody + Send + Sync>;

/// Describes entries by their place alone: the path above is the service, the last name the
/// instance, and what has no owner is a companion.
pub fn by_path() -> Describe {
    Arc::new(|key, value, owner| {
        let key = String::from_utf8_lossy(key);
        let (service, instance) = key.rsplit_once('/').unwrap_or(("", &key));
        RecordBody {
            service: service.to_owned(),
            instance: instance.to_owned(),
            value: value.clone(),
            companion: owner == Owner::Persistent,
            ..RecordBody::default()
        }
    })
}

#[cfg(test)]
mod tests {
    use causeway_backend::LeaseId;

    use super::*;

    #[test]
    fn a_path_tells_service_and_instance() {
        let cases: &[(&str, Owner, &str, &str, bool)] = &[
            (
                "/dubbo/orders/a:1",
                Owner::Lease(LeaseId(1)),
                "/dubbo/orders",
                "a:1",
                false,
            ),
            ("/dubbo/orders", Owner::Persistent, "/dubbo", "orders", true),
            ("orders", Owner::Lease(LeaseId(1)), "", "orders", false),
        ];
        for (key, owner, service, instance, companion) in cases {
            let value = Bytes::from_static(b"\x00 value");
            let body = by_path()(&Bytes::from(*key), &value, *owner);
            assert_eq!(
                (&body.service[..], &body.instance[..]),
                (*service, *instance),
                "{key}"
            );
            assert_eq!((body.companion, body.value), (*companion, value), "{key}");
        }
    }
}
