//! The real stores pass the same scenarios: otherwise a scenario says nothing about the gateway.

use causeway_compat_tests::Work;
use causeway_compat_tests::target::Legacy;

use crate::drop_in;

#[test]
fn real_stores_pass_the_scenarios() {
    Work::scenario("real", |work| {
        let legacy = Legacy::start(work)?;
        drop_in::all(work, &legacy.target(), "real")
    });
}
