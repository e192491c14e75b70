use causeway_wire::zk::request::{CreateRequest, CreateTtlRequest, DeleteRequest, SetDataRequest};

use super::*;

const SESSION: i64 = 7;

fn create(flags: i32) -> CreateRequest {
    CreateRequest {
        path: "/a".into(),
        data: None,
        acl: Vec::new(),
        flags,
    }
}

fn ttl(flags: i32, ttl: i64) -> CreateTtlRequest {
    CreateTtlRequest {
        path: "/a".into(),
        data: None,
        acl: Vec::new(),
        flags,
        ttl,
    }
}

#[test]
fn flags_become_modes() {
    let check = |request: Request, mode: CreateMode, shape: Shape| match write(
        &request,
        SESSION,
        &[],
        false,
    ) {
        Ok(Some(Write {
            op: TreeCommand::Create {
                mode: got, session, ..
            },
            shape: got_shape,
        })) => assert_eq!(
            (got, got_shape, session),
            (mode, shape, SESSION),
            "{request:?}"
        ),
        other => panic!("{other:?}"),
    };
    use CreateMode::*;
    let plain = [
        (0, Persistent),
        (1, Ephemeral),
        (2, PersistentSequential),
        (3, EphemeralSequential),
        (4, Persistent),
    ];
    let container = [
        (0, Container),
        (1, Container),
        (2, ContainerSequential),
        (3, ContainerSequential),
        (4, Container),
    ];
    let none = [-1, 5, 6, 7, i32::MAX].map(|flags| (flags, NO_MODE));
    for (flags, mode) in plain.into_iter().chain(none) {
        check(Request::Create(create(flags)), mode, Shape::Path);
        check(Request::Create2(create(flags)), mode, Shape::PathAndStat);
    }
    for (flags, mode) in container.into_iter().chain(none) {
        let request = Request::CreateContainer(create(flags));
        check(request, mode, Shape::PathAndStat);
    }
    for (flags, mode) in [
        (5, PersistentTtl { ttl_ms: 9 }),
        (6, PersistentSequentialTtl { ttl_ms: 9 }),
        (-1, NO_MODE),
        (0, NO_MODE),
        (1, NO_MODE),
        (2, NO_MODE),
        (3, NO_MODE),
        (4, NO_MODE),
        (7, NO_MODE),
    ] {
        let request = Request::CreateTtl(ttl(flags, 9));
        check(request, mode, Shape::PathAndStat);
    }
}

#[test]
fn the_tree_refuses_what_is_no_mode_before_all_else() {
    let mut tree = tree::ZnodeTree::new();
    let create = Request::CreateTtl(CreateTtlRequest {
        path: "no path".into(),
        ..ttl(1, 9)
    });
    let Ok(Some(Write { op, .. })) = write(&create, SESSION, &[], false) else {
        panic!("a write");
    };
    assert_eq!(tree.apply(&op, 5, 1).result, Err(TreeError::BadArguments));
    assert_eq!(tree.last_zxid(), 5);
}

#[test]
fn the_operation_and_its_flags_tell_the_result_of_a_create_in_a_multi() {
    use CreateMode::*;
    let check = |op: MultiOp, mode: CreateMode, shape: Shape| match multi_op(&op, false) {
        Ok((tree::MultiOp::Create { mode: got, .. }, got_shape)) => {
            assert_eq!((got, got_shape), (mode, shape), "{op:?}");
        }
        other => panic!("{other:?}"),
    };
    for (flags, mode) in [
        (0, Persistent),
        (1, Ephemeral),
        (2, PersistentSequential),
        (3, EphemeralSequential),
    ] {
        check(MultiOp::Create(create(flags)), mode, Shape::Path);
        check(MultiOp::Create2(create(flags)), mode, Shape::PathAndStat);
        check(MultiOp::CreateTtl(ttl(flags, 9)), mode, Shape::Path);
    }
    for op in [
        MultiOp::Create(create(4)),
        MultiOp::Create2(create(4)),
        MultiOp::CreateContainer(create(0)),
        MultiOp::CreateContainer(create(1)),
        MultiOp::CreateContainer(create(4)),
        MultiOp::CreateTtl(ttl(4, 9)),
    ] {
        check(op, Container, Shape::PathAndStat);
    }
    check(
        MultiOp::CreateTtl(ttl(5, 9)),
        PersistentTtl { ttl_ms: 9 },
        Shape::PathAndStat,
    );
    check(MultiOp::CreateTtl(ttl(7, 9)), NO_MODE, Shape::Path);
}

#[test]
fn every_refusal_of_the_tree_has_its_code() {
    for (error, code) in [
        (TreeError::NoNode, -101),
        (TreeError::NodeExists, -110),
        (TreeError::NotEmpty, -111),
        (TreeError::BadVersion, -103),
        (TreeError::NoChildrenForEphemerals, -108),
        (TreeError::BadArguments, -8),
        (TreeError::InvalidAcl, -114),
        (TreeError::NoAuth, -102),
        (TreeError::SessionExpired, -112),
    ] {
        assert_eq!(error_code(error).number(), code);
        let reply = CoreReply::Tree(Err(error));
        assert_eq!(written(&Shape::Nothing, reply), Err(error_code(error)));
    }
}

#[test]
fn what_protection_keeps_is_not_permitted() {
    let refused = || CoreReply::Refused {
        service: "s".into(),
    };
    assert_eq!(written(&Shape::Nothing, refused()), Err(ErrorCode::NoAuth));
    let multi = Shape::Multi(vec![Shape::Path, Shape::Nothing, Shape::Stat]);
    assert_eq!(
        written(&multi, refused()),
        Ok(Reply::Multi(MultiResponse::failure(
            3,
            1,
            ErrorCode::NoAuth
        )))
    );
}

#[test]
fn a_multi_with_a_read_is_refused_as_a_whole() {
    let delete = || {
        MultiOp::Delete(DeleteRequest {
            path: "/a".into(),
            version: -1,
        })
    };
    let read = || {
        MultiOp::GetData(causeway_wire::zk::request::ReadRequest {
            path: "/a".into(),
            watch: false,
        })
    };
    let check = |ops: Vec<MultiOp>, want: Result<Vec<Shape>, ErrorCode>| {
        let got = match write(
            &Request::Multi(MultiRequest { ops: ops.clone() }),
            SESSION,
            &[],
            false,
        ) {
            Ok(Some(Write {
                shape: Shape::Multi(shapes),
                ..
            })) => Ok(shapes),
            Err(code) => Err(code),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, want, "{ops:?}");
    };
    check(vec![], Ok(vec![]));
    check(
        vec![delete(), MultiOp::Create2(create(0))],
        Ok(vec![Shape::Nothing, Shape::PathAndStat]),
    );
    check(vec![read()], Err(ErrorCode::MarshallingError));
    check(vec![delete(), read()], Err(ErrorCode::MarshallingError));
    // What can be read is the tree's to refuse, behind what comes before it.
    let Ok(Some(Write { op, .. })) = write(
        &Request::Multi(MultiRequest {
            ops: vec![delete(), MultiOp::CreateTtl(ttl(9, 1))],
        }),
        SESSION,
        &[],
        false,
    ) else {
        panic!("a write");
    };
    let result = tree::ZnodeTree::new().apply(&op, 5, 1).result;
    let failed = vec![OpResult::Failed(TreeError::NoNode), OpResult::NotTried];
    assert_eq!(result, Ok(TreeReply::Multi(failed)));
}

#[test]
fn what_the_ensemble_acknowledged_is_done_under_its_names() {
    let op = |mode| TreeCommand::Create {
        path: "/own/a-".into(),
        data: None,
        acl: Vec::new(),
        mode,
        session: SESSION,
        auth: Vec::new(),
    };
    let named_by_ensemble = Reply::Create(CreateResponse {
        path: "/own/a-0000000003".into(),
    });
    let owned = |path: &str| path.starts_with("/own/");
    match acknowledged(
        op(CreateMode::EphemeralSequential),
        &named_by_ensemble,
        owned,
    ) {
        Some(TreeCommand::Create { path, mode, .. }) => {
            assert_eq!(
                (path.as_str(), mode),
                ("/own/a-0000000003", CreateMode::Ephemeral)
            );
        }
        other => panic!("{other:?}"),
    }
    let set = |path: &str| tree::MultiOp::SetData {
        path: path.into(),
        data: None,
        version: 3,
    };
    let multi = TreeCommand::Multi {
        ops: vec![set("/own/x"), set("/general")],
        session: SESSION,
        auth: vec![],
    };
    let yes = Reply::Multi(MultiResponse {
        results: vec![
            MultiResult::SetData(Stat::default()),
            MultiResult::SetData(Stat::default()),
        ],
    });
    match acknowledged(multi.clone(), &yes, owned) {
        Some(TreeCommand::Multi { ops, .. }) => assert_eq!(ops, vec![set("/own/x")]),
        other => panic!("{other:?}"),
    }
    let no = Reply::Multi(MultiResponse::failure(2, 1, ErrorCode::BadVersion));
    assert_eq!(acknowledged(multi, &no, owned), None);
}

#[test]
fn every_request_with_a_path_names_it() {
    let set = Request::SetData(SetDataRequest {
        path: "/a".into(),
        data: None,
        version: 0,
    });
    assert_eq!(paths(&set), ["/a"]);
    let multi = Request::Multi(MultiRequest {
        ops: vec![MultiOp::Create(create(0)), MultiOp::CreateTtl(ttl(5, 1))],
    });
    assert_eq!(paths(&multi), ["/a", "/a"]);
    assert!(paths(&Request::Ping).is_empty());
}

#[test]
fn identities_need_a_scheme_that_is_known() {
    let auth = |scheme: &str| AuthRequest {
        kind: 0,
        scheme: scheme.into(),
        auth: Some(Bytes::from_static(b"u:p")),
    };
    let address = std::net::IpAddr::from([10, 0, 0, 1]);
    let digest = identity(&auth("digest"), address, &[]).expect("known");
    assert_eq!(
        (digest.clone(), user_of(&digest)),
        (AuthId::digest("u", "p"), "u".to_owned())
    );
    assert_eq!(identity(&auth("ip"), address, &[]), Ok(AuthId::ip(address)));
    for scheme in ["", "world", "super", "x509", "sasl", "auth"] {
        assert_eq!(
            identity(&auth(scheme), address, &[]),
            Err(ErrorCode::AuthFailed),
            "{scheme}"
        );
    }
    // A certificate was shown with the connection.
    let shown = [AuthId::ip(address), AuthId::x509("CN=a".into())];
    assert_eq!(
        identity(&auth("x509"), address, &shown),
        Ok(AuthId::x509("CN=a".into()))
    );
}

#[test]
fn acls_of_certificates_are_for_those_who_speak_tls() {
    let asked = vec![Acl {
        perms: 31,
        scheme: "x509".into(),
        id: "CN=a".into(),
    }];
    let create = CreateRequest {
        acl: asked,
        ..create(0)
    };
    let multi = MultiRequest {
        ops: vec![MultiOp::Create(create.clone())],
    };
    for (x509, single, within) in [
        (true, Ok(()), Ok(())),
        (
            false,
            Err(TreeError::InvalidAcl),
            Err(TreeError::InvalidAcl),
        ),
    ] {
        let check = |request: Request, want: Result<(), TreeError>| {
            let Ok(Some(Write { op, .. })) = write(&request, SESSION, &[], x509) else {
                panic!("a write");
            };
            let got = match tree::ZnodeTree::new().apply(&op, 5, 1).result {
                Ok(TreeReply::Multi(results)) => match results.as_slice() {
                    [OpResult::Failed(error)] => Err(*error),
                    _ => Ok(()),
                },
                other => other.map(drop),
            };
            assert_eq!(got, want, "{request:?} {x509}");
        };
        check(Request::Create(create.clone()), single);
        check(Request::Multi(multi.clone()), within);
    }
}
