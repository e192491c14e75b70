//! Users in the machine: what voids tokens, what a restart keeps, whom a legacy store leaves alone.

use super::*;
use crate::key_auth::{AuthCommand, AuthError, Credentials, Demand, PasswordHash};

fn hash() -> Option<PasswordHash> {
    Some(PasswordHash(Bytes::from_static(b"$2b$")))
}

fn users() -> [AuthCommand; 4] {
    let add = |name: &str| AuthCommand::UserAdd {
        name: name.into(),
        password: hash(),
    };
    let grant = AuthCommand::UserGrantRole {
        user: "root".into(),
        role: "root".into(),
    };
    [add("root"), grant, add("joe"), AuthCommand::Enable]
}

fn with_users(bench: &mut Bench) {
    for command in users() {
        assert_eq!(change(bench, command), Ok(()));
    }
}

fn change(bench: &mut Bench, command: AuthCommand) -> Result<(), AuthError> {
    match bench.apply(Command::Auth(command)).reply {
        Some(Reply::Auth(done)) => done,
        other => panic!("no answer: {other:?}"),
    }
}

fn log_in(bench: &mut Bench, user: &str) -> String {
    let (_, revision) = bench.core.auth().password_of(user).expect("a user");
    let token = format!("{user}.1");
    let (now, core) = (bench.now, &mut bench.core);
    assert_eq!(
        core.issue_token(user, revision, token.clone(), now),
        Ok(true)
    );
    token
}

fn known(bench: &mut Bench, token: Option<&str>) -> Result<(), AuthError> {
    let shown = Credentials {
        token,
        certificate: None,
    };
    bench.core.permit(Demand::BeKnown, shown, bench.now)
}

#[test]
fn changes_of_a_user_void_its_tokens() {
    let void = Err(AuthError::InvalidToken);
    let check = |command: AuthCommand, want: Result<(), AuthError>| {
        let mut bench = Bench::embedded();
        with_users(&mut bench);
        let (joe, root) = (log_in(&mut bench, "joe"), log_in(&mut bench, "root"));
        let _ = change(&mut bench, command.clone());
        assert_eq!(known(&mut bench, Some(&joe)), want, "{command:?}");
        assert_eq!(known(&mut bench, Some(&root)), Ok(()), "{command:?}");
    };
    let joe = || "joe".to_owned();
    check(AuthCommand::UserDelete { name: joe() }, void);
    let password = |password| AuthCommand::UserChangePassword {
        name: joe(),
        password,
    };
    check(password(hash()), void);
    check(password(None), Ok(()));
    check(AuthCommand::RoleAdd { name: joe() }, Ok(()));
    check(AuthCommand::UserDelete { name: "ann".into() }, Ok(()));
    check(AuthCommand::Enable, Ok(()));
}

#[test]
fn a_login_counts_for_the_password_that_was_compared() {
    let mut bench = Bench::embedded();
    with_users(&mut bench);
    let (_, revision) = bench.core.auth().password_of("joe").expect("a user");
    let change_it = AuthCommand::UserChangePassword {
        name: "joe".into(),
        password: hash(),
    };
    assert_eq!(change(&mut bench, change_it), Ok(()));
    let mut issue = |revision| {
        bench
            .core
            .issue_token("joe", revision, "t.1".into(), bench.now)
    };
    assert_eq!(issue(revision), Ok(false));
    assert_eq!(issue(revision + 1), Ok(true));
    assert_eq!(known(&mut bench, Some("t.1")), Ok(()));
    // Off and on again: nothing is left of it.
    assert_eq!(change(&mut bench, AuthCommand::Disable), Ok(()));
    assert_eq!(known(&mut bench, Some("t.1")), Ok(()), "while it is off");
    assert_eq!(change(&mut bench, AuthCommand::Enable), Ok(()));
    assert_eq!(known(&mut bench, Some("t.1")), Err(AuthError::InvalidToken));
}

#[test]
fn users_outlive_a_restart_and_tokens_do_not() {
    let mut bench = Bench::embedded();
    with_users(&mut bench);
    let joe = log_in(&mut bench, "joe");
    bench.restart();
    assert_eq!(known(&mut bench, Some(&joe)), Err(AuthError::InvalidToken));
    assert_eq!(known(&mut bench, None), Err(AuthError::UserEmpty));
    let joe = log_in(&mut bench, "joe");
    assert_eq!(known(&mut bench, Some(&joe)), Ok(()));
}

#[test]
fn a_malformed_write_is_refused_for_that_first() {
    let mut bench = Bench::embedded();
    with_users(&mut bench);
    let delete = |key: &'static str| KeyCommand::DeleteRange {
        key: Bytes::from_static(key.as_bytes()),
        range_end: Bytes::new(),
        prev_kv: false,
    };
    for (key, want) in [("", Ok(())), ("k", Err(AuthError::UserEmpty))] {
        let op = delete(key);
        let shown = Credentials::default();
        let permitted = bench.core.permit(Demand::Write(&op), shown, bench.now);
        assert_eq!(permitted, want, "{key}");
    }
}

#[test]
fn beside_a_legacy_etcd_users_are_its_matter() {
    let mut bench = Bench::embedded();
    with_users(&mut bench);
    let saved = bench.core.snapshot().expect("saves");
    let behind = settings(Store::Embedded, Store::Legacy, Phase::Proxy);
    bench.core = Core::restore(behind, &saved).expect("restores");
    assert!(!bench.core.asks_who_calls());
    assert_eq!(known(&mut bench, None), Ok(()));
}
