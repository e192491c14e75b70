use super::*;
use crate::key_space::{Compare, CompareResult, CompareTarget, KeyCommand, KeySpace, Op, Txn};

fn hash() -> Option<PasswordHash> {
    Some(PasswordHash(Bytes::from_static(b"$2b$")))
}

fn add_user(name: &str) -> AuthCommand {
    AuthCommand::UserAdd {
        name: name.into(),
        password: hash(),
    }
}

fn add_role(name: &str) -> AuthCommand {
    AuthCommand::RoleAdd { name: name.into() }
}

fn grant_role(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserGrantRole {
        user: user.into(),
        role: role.into(),
    }
}

fn revoke_role(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserRevokeRole {
        user: user.into(),
        role: role.into(),
    }
}

fn delete_user(name: &str) -> AuthCommand {
    AuthCommand::UserDelete { name: name.into() }
}

fn delete_role(name: &str) -> AuthCommand {
    AuthCommand::RoleDelete { name: name.into() }
}

fn grant(role: &str, kind: PermissionKind, key: &str, range_end: &str) -> AuthCommand {
    AuthCommand::RoleGrantPermission {
        role: role.into(),
        permission: Some(Permission {
            kind,
            key: Bytes::copy_from_slice(key.as_bytes()),
            range_end: Bytes::copy_from_slice(range_end.as_bytes()),
        }),
    }
}

fn revoke(role: &str, key: &str, range_end: &str) -> AuthCommand {
    AuthCommand::RoleRevokePermission {
        role: role.into(),
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::copy_from_slice(range_end.as_bytes()),
    }
}

/// `root`, and `joe` with a role of the same name, while authentication is on.
fn on() -> AuthStore {
    let mut store = AuthStore::default();
    for command in [
        add_user(ROOT),
        grant_role(ROOT, ROOT),
        add_user("joe"),
        add_role("joe"),
        grant_role("joe", "joe"),
        AuthCommand::Enable,
    ] {
        assert_eq!(store.apply(&command), Ok(()), "{command:?}");
    }
    store
}

/// Each command with its answer and whether it counts as a change.
fn check(mut store: AuthStore, commands: &[(AuthCommand, Result<(), AuthError>, bool)]) {
    for (command, want, counts) in commands {
        let before = store.revision();
        assert_eq!(store.apply(command), *want, "{command:?}");
        let counted = store.revision() - before;
        assert_eq!(counted, u64::from(*counts), "{command:?}");
    }
}

#[test]
fn changes_are_refused_as_etcd_refuses_them() {
    use AuthError::*;
    use PermissionKind::*;
    let yes = |command| (command, Ok(()), true);
    let same = |command| (command, Ok(()), false);
    let no = |command, error| (command, Err(error), false);
    assert_eq!(AuthStore::default().revision(), 1);
    check(
        AuthStore::default(),
        &[
            same(AuthCommand::Disable),
            no(AuthCommand::Enable, RootUserNotExist),
            no(add_user(""), UserEmpty),
            yes(add_user(ROOT)),
            no(AuthCommand::Enable, RootRoleNotExist),
            no(add_user(ROOT), UserAlreadyExist),
            // The role need not exist.
            yes(grant_role(ROOT, ROOT)),
            same(grant_role(ROOT, ROOT)),
            no(grant_role("joe", "any"), UserNotFound),
            no(grant_role(ROOT, "any"), RoleNotFound),
            no(revoke_role(ROOT, "any"), RoleNotGranted),
            no(revoke_role("joe", "any"), UserNotFound),
            no(delete_user("joe"), UserNotFound),
            no(delete_role("any"), RoleNotFound),
            no(add_role(""), RoleEmpty),
            yes(add_role("any")),
            no(add_role("any"), RoleAlreadyExist),
            no(grant("none", Read, "a", ""), RoleNotFound),
            no(grant("none", Read, "", ""), InvalidManagement),
            no(grant("any", Read, "b", "a"), InvalidManagement),
            no(grant("any", Read, "b", "b"), InvalidManagement),
            no(
                AuthCommand::RoleGrantPermission {
                    role: "none".into(),
                    permission: None,
                },
                PermissionNotGiven,
            ),
            yes(grant("any", Read, "b", "\0")),
            no(revoke("any", "b", ""), PermissionNotGranted),
            no(revoke("none", "b", ""), RoleNotFound),
            yes(revoke("any", "b", "\0")),
            yes(grant_role(ROOT, "any")),
            yes(delete_role("any")),
            no(revoke_role(ROOT, "any"), RoleNotGranted),
            same(AuthCommand::Enable),
            same(AuthCommand::Enable),
            // Nobody may be locked out now.
            no(delete_user(ROOT), InvalidManagement),
            no(revoke_role(ROOT, ROOT), InvalidManagement),
            no(delete_role(ROOT), InvalidManagement),
            yes(AuthCommand::Disable),
            yes(revoke_role(ROOT, ROOT)),
            yes(delete_user(ROOT)),
        ],
    );
}

#[test]
fn passwords_and_users_without_one() {
    let change = |name: &str, password| AuthCommand::UserChangePassword {
        name: name.into(),
        password,
    };
    let mut store = on();
    let without = AuthCommand::UserAdd {
        name: "cert".into(),
        password: None,
    };
    assert_eq!(store.apply(&without), Ok(()));
    let empty = PasswordHash(Bytes::new());
    for (command, want) in [
        (change("none", hash()), Err(AuthError::UserNotFound)),
        (change("joe", None), Err(AuthError::NoPasswordUser)),
        (change("joe", Some(empty.clone())), Ok(())),
        // It gets none in this way either.
        (change("cert", hash()), Ok(())),
    ] {
        assert_eq!(store.apply(&command), want, "{command:?}");
    }
    let revision = store.revision();
    for (user, want) in [
        ("joe", Ok((empty, revision))),
        ("none", Err(AuthError::AuthFailed)),
        ("cert", Err(AuthError::NoPasswordUser)),
    ] {
        assert_eq!(store.password_of(user), want, "{user}");
    }
    assert_eq!(store.apply(&AuthCommand::Disable), Ok(()));
    assert_eq!(store.password_of("joe"), Err(AuthError::NotEnabled));
    assert_eq!(format!("{:?}", hash()), "Some(PasswordHash(..))");
}

#[test]
fn what_is_shown_of_users_and_roles() {
    let mut store = on();
    for command in [
        add_role("b"),
        grant_role("joe", "b"),
        add_role(ROOT),
        grant("b", PermissionKind::Write, "k", ""),
        grant("b", PermissionKind::Read, "k", "l"),
        grant("b", PermissionKind::Read, "a", "\0"),
        grant("b", PermissionKind::ReadWrite, "k", ""),
        // The first with this key is on another range: both are kept.
        grant("b", PermissionKind::ReadWrite, "k", "l"),
    ] {
        assert_eq!(store.apply(&command), Ok(()), "{command:?}");
    }
    assert_eq!(store.users().collect::<Vec<_>>(), ["joe", ROOT]);
    assert_eq!(store.roles().collect::<Vec<_>>(), ["b", "joe", ROOT]);
    let roles = store.roles_of("joe").map(Iterator::collect::<Vec<_>>);
    assert_eq!(roles, Ok(vec!["b", "joe"]));
    assert_eq!(store.roles_of("none").err(), Some(AuthError::UserNotFound));
    let shown = |role| {
        let all = store.permissions_of(role).expect("a role");
        let one = |p: &Permission| format!("{:?} {:?} {:?}", p.kind, p.key, p.range_end);
        all.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(
        shown("b"),
        [
            r#"Read b"a" b"\0""#,
            r#"ReadWrite b"k" b"""#,
            r#"Read b"k" b"l""#,
            r#"ReadWrite b"k" b"l""#
        ]
    );
    assert_eq!(shown(ROOT), [r#"ReadWrite b"" b"\0""#]);
    assert_eq!(store.permissions_of("none"), Err(AuthError::RoleNotFound));
}

#[test]
fn permissions_on_ranges_add_up() {
    use PermissionKind::*;
    let may = |granted: &[(PermissionKind, &str, &str)], key: &str, range_end: &str| {
        let mut store = on();
        for (kind, key, range_end) in granted {
            let command = grant("joe", *kind, key, range_end);
            assert_eq!(store.apply(&command), Ok(()), "{command:?}");
        }
        let joe = Identity::user("joe");
        let (key, range_end) = (key.as_bytes(), range_end.as_bytes());
        let read = Demand::Read { key, range_end };
        let delete = KeyCommand::DeleteRange {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(range_end),
            prev_kv: false,
        };
        let keys = KeySpace::new(1);
        (
            store.permit(&joe, read, &keys).is_ok(),
            store.permit(&joe, Demand::Write(&delete), &keys).is_ok(),
        )
    };
    let check = |granted: &[_], asked: &[(&str, &str, bool, bool)]| {
        for (key, end, read, write) in asked {
            let got = may(granted, key, end);
            assert_eq!(got, (*read, *write), "{granted:?}: {key:?} {end:?}");
        }
    };
    check(&[], &[("a", "", false, false), ("a", "\0", false, false)]);
    check(
        &[(Read, "b", "d"), (Write, "c", "")],
        &[
            ("a", "", false, false),
            ("b", "", true, false),
            ("c", "", true, true),
            ("c", "c\0", true, true),
            ("c\0", "", true, false),
            ("d", "", false, false),
            ("b", "d", true, false),
            ("b", "d\0", false, false),
            ("a", "c", false, false),
            ("b", "\0", false, false),
            // A range that holds nothing.
            ("b", "a", true, false),
            ("c", "c", true, true),
            ("d", "a", false, false),
        ],
    );
    // Ranges that touch or overlap are one; a gap is not filled.
    check(
        &[
            (Read, "a", "c"),
            (Read, "c", "e"),
            (Read, "d", "g"),
            (Read, "h", "i"),
            (Read, "b", ""),
        ],
        &[
            ("a", "g", true, false),
            ("b", "f", true, false),
            ("a", "h", false, false),
            ("g", "", false, false),
            ("h", "i", true, false),
        ],
    );
    check(
        &[(ReadWrite, "m", "\0"), (Unknown(9), "a", "\0")],
        &[
            ("m", "\0", true, true),
            ("n", "z", true, true),
            ("l", "\0", false, false),
            ("\0", "\0", false, false),
        ],
    );
    // Everything: a key of one zero byte is the first.
    check(
        &[(ReadWrite, "\0", "\0")],
        &[("\0", "\0", true, true), ("a", "b", true, true)],
    );
}

#[test]
fn who_may_do_what() {
    use PermissionKind::*;
    let mut store = on();
    for command in [
        add_user("idle"),
        grant("joe", ReadWrite, "a/", "a0"),
        grant("joe", Read, "r", ""),
        grant("joe", Write, "w", ""),
    ] {
        assert_eq!(store.apply(&command), Ok(()), "{command:?}");
    }
    let mut keys = KeySpace::new(1);
    let put = |key: &str, lease: i64, prev_kv: bool| KeyCommand::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::new(),
        lease,
        prev_kv,
        ignore_value: false,
        ignore_lease: false,
    };
    for command in [
        KeyCommand::LeaseGrant { id: 1, ttl_s: 60 },
        KeyCommand::LeaseGrant { id: 2, ttl_s: 60 },
        KeyCommand::LeaseGrant { id: 3, ttl_s: 60 },
        put("a/1", 1, false),
        put("a/2", 2, false),
        put("z", 2, false),
        put("w", 3, false),
    ] {
        assert!(keys.apply(&command, 0, 0).result.is_ok(), "{command:?}");
    }
    let delete = |key: &str, prev_kv| KeyCommand::DeleteRange {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::new(),
        prev_kv,
    };
    let op = |command| match command {
        KeyCommand::Put {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        } => Op::Put {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        },
        other => panic!("no operation: {other:?}"),
    };
    let compare = |key: &str| Compare {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::new(),
        target: CompareTarget::Version(0),
        result: CompareResult::Equal,
    };
    let txn = |compare, success, failure| {
        KeyCommand::Txn(Txn {
            compare,
            success,
            failure,
        })
    };
    let nested = |command| {
        Op::Txn(Txn {
            failure: vec![op(command)],
            ..Txn::default()
        })
    };
    let compaction = KeyCommand::Compact { revision: 2 };
    let granted = KeyCommand::LeaseGrant { id: 9, ttl_s: 60 };
    let revoked = |id| KeyCommand::LeaseRevoke {
        id,
        keep: Vec::new(),
    };
    let empty = Err(AuthError::UserEmpty);
    let denied = Err(AuthError::PermissionDenied);
    let unknown = Err(AuthError::UserNotFound);
    // Nobody, a user without a role, joe, a name that is no user's; root may everything.
    let table: Vec<(Demand<'_>, [Result<(), AuthError>; 4])> = vec![
        (Demand::Anything, [Ok(()); 4]),
        (Demand::BeKnown, [empty, Ok(()), Ok(()), Ok(())]),
        (Demand::BeRoot, [empty, denied, denied, unknown]),
        (Demand::Write(&granted), [empty, Ok(()), Ok(()), Ok(())]),
        (Demand::Write(&compaction), [empty, denied, denied, unknown]),
        (Demand::RenewLease(1), [empty, denied, Ok(()), denied]),
        (Demand::RenewLease(2), [empty, denied, denied, denied]),
        (Demand::RenewLease(7), [empty, Ok(()), Ok(()), Ok(())]),
        (Demand::ReadLease(1), [empty, denied, Ok(()), denied]),
        (Demand::ReadLease(3), [empty, denied, denied, denied]),
        (Demand::ReadLeases, [empty, denied, denied, denied]),
        (Demand::SeeUser("joe"), [empty, denied, Ok(()), unknown]),
        (Demand::SeeUser(""), [Ok(()), denied, denied, unknown]),
        (Demand::SeeRole("joe"), [empty, denied, Ok(()), unknown]),
        (Demand::SeeRole(ROOT), [empty, denied, denied, unknown]),
    ];
    let writes = [
        (put("a/1", 0, true), [empty, denied, Ok(()), denied]),
        (put("w", 0, false), [empty, denied, Ok(()), denied]),
        (put("w", 0, true), [empty, denied, denied, denied]),
        (put("r", 0, false), [empty, denied, denied, denied]),
        (put("a/1", 1, false), [empty, denied, Ok(()), denied]),
        (put("a/1", 2, false), [empty, denied, denied, denied]),
        (put("a/1", 7, false), [empty, denied, Ok(()), denied]),
        (delete("w", false), [empty, denied, Ok(()), denied]),
        (delete("w", true), [empty, denied, denied, denied]),
        (revoked(1), [empty, denied, Ok(()), denied]),
        (revoked(2), [empty, denied, denied, denied]),
        (revoked(7), [empty, Ok(()), Ok(()), Ok(())]),
        (txn(vec![], vec![], vec![]), [Ok(()); 4]),
        (
            txn(vec![compare("r")], vec![], vec![]),
            [empty, denied, Ok(()), denied],
        ),
        (
            txn(vec![compare("w")], vec![], vec![]),
            [empty, denied, denied, denied],
        ),
        (
            txn(vec![], vec![op(put("w", 0, false))], vec![]),
            [empty, denied, Ok(()), denied],
        ),
        // The branch that is not taken counts, and so does what is nested in it.
        (
            txn(
                vec![],
                vec![op(put("w", 0, false))],
                vec![op(put("r", 0, false))],
            ),
            [empty, denied, denied, denied],
        ),
        (
            txn(vec![], vec![], vec![nested(put("r", 0, false))]),
            [empty, denied, denied, denied],
        ),
    ];
    let writes = writes
        .iter()
        .map(|(command, want)| (Demand::Write(command), *want));
    let who = [
        Identity::nobody(),
        Identity::user("idle"),
        Identity::user("joe"),
        Identity::user("ghost"),
    ];
    let mut off = store.clone();
    assert_eq!(off.apply(&AuthCommand::Disable), Ok(()));
    for (demand, want) in table.into_iter().chain(writes) {
        let got = who.each_ref().map(|who| store.permit(who, demand, &keys));
        assert_eq!(got, want, "{demand:?}");
        let root = Identity::user(ROOT);
        assert_eq!(store.permit(&root, demand, &keys), Ok(()), "{demand:?}");
        assert_eq!(off.permit(&who[0], demand, &keys), Ok(()), "{demand:?}");
    }
}

#[test]
fn tokens_live_as_long_as_they_are_used() {
    let store = on();
    let mut tokens = Tokens::default();
    tokens.issue("t.1".into(), "joe", 0);
    tokens.issue("u.1".into(), ROOT, 0);
    let mut who = |token, certificate, now_ms| {
        let shown = Credentials { token, certificate };
        store.identify(&mut tokens, shown, now_ms)
    };
    let joe = Ok(Identity::user("joe"));
    let invalid = Err(AuthError::InvalidToken);
    assert_eq!(who(None, None, 0), Ok(Identity::nobody()));
    assert_eq!(who(None, Some("cn"), 0), Ok(Identity::user("cn")));
    assert_eq!(who(Some("t.1"), Some("cn"), 0), joe);
    assert_eq!(who(Some("Bearer t.1"), None, 0), joe);
    for none in ["", "t.2", "Bearer ", "bearer t.1"] {
        assert_eq!(who(Some(none), Some("cn"), 0), invalid, "{none}");
    }
    // Each use gives it the whole time again.
    assert_eq!(who(Some("t.1"), None, TOKEN_TTL_MS - 1), joe);
    assert_eq!(who(Some("u.1"), None, TOKEN_TTL_MS), invalid);
    assert_eq!(who(Some("t.1"), None, 2 * TOKEN_TTL_MS - 2), joe);
    assert_eq!(who(Some("t.1"), None, 3 * TOKEN_TTL_MS), invalid);
}

#[test]
fn a_store_that_was_saved_allows_the_same() {
    let mut store = on();
    assert_eq!(
        store.apply(&grant("joe", PermissionKind::Read, "a", "c")),
        Ok(())
    );
    let saved = postcard::to_stdvec(&store).expect("saved");
    let read: AuthStore = postcard::from_bytes(&saved).expect("read");
    assert_eq!(
        (read.is_enabled(), read.revision()),
        (true, store.revision())
    );
    let (keys, joe) = (KeySpace::new(1), Identity::user("joe"));
    for (key, want) in [("a", Ok(())), ("c", Err(AuthError::PermissionDenied))] {
        let demand = Demand::Read {
            key: key.as_bytes(),
            range_end: b"",
        };
        assert_eq!(read.permit(&joe, demand, &keys), want);
    }
    let hash = read.password_of("joe").map(|(hash, _)| hash);
    assert_eq!(hash.ok(), super::tests::hash());
}
