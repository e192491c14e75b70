use super::*;
use crate::etcd::frame::take_message;
use crate::etcd::messages::etcdserverpb::{WatchCancelRequest, WatchProgressRequest};
use crate::etcd::messages::mvccpb::KeyValue;

fn ids() -> ServerIds {
    ServerIds {
        cluster_id: 11,
        member_id: 22,
        raft_term: 3,
    }
}

fn stream() -> WatchStream {
    WatchStream::new(ids(), WatchStreamLimits::default())
}

fn watch(key: &str) -> WatchCreateRequest {
    WatchCreateRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        ..WatchCreateRequest::default()
    }
}

fn create(stream: &mut WatchStream, request: WatchCreateRequest, revision: i64) {
    let request_union = Some(RequestUnion::CreateRequest(request));
    stream.handle_request(WatchRequest { request_union }, revision);
}

fn cancel(stream: &mut WatchStream, watch_id: i64, revision: i64) {
    let request_union = Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    stream.handle_request(WatchRequest { request_union }, revision);
}

fn ask_progress(stream: &mut WatchStream, revision: i64) {
    let request_union = Some(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    stream.handle_request(WatchRequest { request_union }, revision);
}

/// The key of the watcher that the stream asks for.
fn asked(stream: &mut WatchStream) -> WatcherKey {
    match stream.poll_action() {
        Some(WatchAction::Create(create)) => create.key,
        other => panic!("no create but {other:?}"),
    }
}

/// A stream with one announced watcher of id 0, at revision 10.
fn with_watcher(request: WatchCreateRequest) -> (WatchStream, WatcherKey) {
    let mut stream = stream();
    create(&mut stream, request, 10);
    let key = asked(&mut stream);
    stream.created(key, 10);
    assert_eq!(output(&mut stream), [created(0, 10)]);
    (stream, key)
}

fn output(stream: &mut WatchStream) -> Vec<WatchResponse> {
    let mut frames = BytesMut::new();
    while let Some(some) = stream.poll_output(1) {
        frames.extend_from_slice(&some);
    }
    assert_eq!(stream.queued_bytes(), 0);
    messages(frames)
}

fn messages(mut frames: BytesMut) -> Vec<WatchResponse> {
    let whole = std::iter::from_fn(|| take_message(&mut frames));
    let messages = whole
        .map(|message| WatchResponse::decode(message).unwrap())
        .collect();
    assert!(frames.is_empty());
    messages
}

fn message(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(ids().header(revision)),
        watch_id,
        ..WatchResponse::default()
    }
}

fn created(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        created: true,
        ..message(watch_id, revision)
    }
}

fn canceled(watch_id: i64, revision: i64) -> WatchResponse {
    WatchResponse {
        canceled: true,
        ..message(watch_id, revision)
    }
}

fn refused(reason: &str, revision: i64) -> WatchResponse {
    let cancel_reason = reason.to_owned();
    WatchResponse {
        created: true,
        cancel_reason,
        ..canceled(NO_WATCH_ID, revision)
    }
}

fn event(kind: EventType, revision: i64, value_len: usize) -> Event {
    let kv = KeyValue {
        mod_revision: revision,
        value: vec![b'v'; value_len].into(),
        ..KeyValue::default()
    };
    Event {
        r#type: kind as i32,
        kv: Some(kv),
        prev_kv: Some(KeyValue::default()),
    }
}

fn put(revision: i64, value_len: usize) -> Event {
    Event {
        prev_kv: None,
        ..event(EventType::Put, revision, value_len)
    }
}

#[test]
fn creates_are_answered_in_the_order_of_requests() {
    let mut stream = stream();
    for key in ["a", "b", "c"] {
        create(&mut stream, watch(key), 5);
    }
    let [a, b, c] = std::array::from_fn(|_| asked(&mut stream));
    stream.created(c, 7);
    stream.events(c, 8, vec![put(8, 1)]);
    assert!(stream.queued_bytes() > 0);
    stream.denied(b, EtcdError::PermissionDenied, 7);
    assert_eq!(stream.poll_output(1), None);
    stream.created(a, 6);
    let events = WatchResponse {
        events: vec![put(8, 1)],
        ..message(1, 8)
    };
    let denial = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    assert_eq!(
        output(&mut stream),
        [created(0, 6), refused(denial, 7), created(1, 7), events]
    );
}

#[test]
fn bad_creates_are_refused_and_the_stream_lives() {
    let check = |request: WatchCreateRequest, reason: &str| {
        let (mut stream, _) = with_watcher(watch("live"));
        create(&mut stream, request, 12);
        assert_eq!(stream.poll_action(), None);
        assert_eq!(output(&mut stream), [refused(reason, 12)]);
        create(&mut stream, watch("next"), 12);
        let key = asked(&mut stream);
        stream.created(key, 12);
        assert_eq!(output(&mut stream), [created(1, 12)]);
    };
    let range = |key: &str, end: &'static [u8]| WatchCreateRequest {
        range_end: end.into(),
        ..watch(key)
    };
    check(
        WatchCreateRequest {
            start_revision: -1,
            ..watch("a")
        },
        "etcdserver: mvcc: required revision has been compacted",
    );
    check(range("b", b"b"), EMPTY_RANGE);
    check(range("b", b"a"), EMPTY_RANGE);
}

#[test]
fn ranges_as_etcd_reads_them() {
    let check = |key: &'static [u8], end: &'static [u8], start: &'static [u8]| {
        let mut stream = stream();
        let request = WatchCreateRequest {
            key: key.into(),
            range_end: end.into(),
            ..WatchCreateRequest::default()
        };
        create(&mut stream, request, 1);
        let Some(WatchAction::Create(got)) = stream.poll_action() else {
            panic!("refused {key:?} {end:?}");
        };
        assert_eq!((&got.start[..], &got.range_end[..]), (start, end));
    };
    check(b"a", b"", b"a");
    check(b"", b"\0\0", b"\0");
    check(b"a", b"b", b"a");
    check(b"a", b"\0", b"a");
    check(b"", b"\0", b"\0");
    check(b"", b"", b"\0");
    check(b"\0", b"\0", b"\0");
}

#[test]
fn chosen_ids_are_honoured_and_unique() {
    let mut stream = stream();
    let with_id = |watch_id| WatchCreateRequest {
        watch_id,
        ..watch("a")
    };
    create(&mut stream, with_id(1), 4);
    let first = asked(&mut stream);
    create(&mut stream, with_id(1), 4);
    for _ in 0..2 {
        create(&mut stream, watch("b"), 4);
    }
    let [second, third] = std::array::from_fn(|_| asked(&mut stream));
    for key in [first, second, third] {
        stream.created(key, 4);
    }
    let want = [
        created(1, 4),
        refused(DUPLICATE_ID, 4),
        created(0, 4),
        created(2, 4),
    ];
    assert_eq!(output(&mut stream), want);
    cancel(&mut stream, 1, 5);
    create(&mut stream, with_id(1), 5);
    assert_eq!(stream.poll_action(), Some(WatchAction::Cancel(first)));
    let again = asked(&mut stream);
    stream.denied(again, EtcdError::InvalidAuthToken, 5);
    create(&mut stream, with_id(1), 5);
    let last = asked(&mut stream);
    stream.created(last, 5);
    let denial = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
    assert_eq!(
        output(&mut stream),
        [canceled(1, 5), refused(denial, 5), created(1, 5)]
    );
}

#[test]
fn cancel_of_a_known_and_of_an_unknown_watcher() {
    let (mut stream, key) = with_watcher(watch("a"));
    cancel(&mut stream, 7, 11);
    assert_eq!((output(&mut stream), stream.poll_action()), (vec![], None));
    cancel(&mut stream, 0, 12);
    assert_eq!(output(&mut stream), [canceled(0, 12)]);
    assert_eq!(stream.poll_action(), Some(WatchAction::Cancel(key)));
    stream.events(key, 13, vec![put(13, 1)]);
    cancel(&mut stream, 0, 13);
    assert_eq!((output(&mut stream), stream.poll_action()), (vec![], None));
}

#[test]
fn compaction_cancels_without_reason_or_revision() {
    let (mut stream, key) = with_watcher(WatchCreateRequest {
        start_revision: 2,
        ..watch("a")
    });
    stream.compacted(key, 6);
    stream.events(key, 11, vec![put(11, 1)]);
    stream.compacted(key, 6);
    let want = WatchResponse {
        compact_revision: 6,
        ..canceled(0, 0)
    };
    assert_eq!(output(&mut stream), [want]);
    // The id stays taken until the client cancels it, which is answered.
    cancel(&mut stream, 0, 12);
    assert_eq!(
        (output(&mut stream), stream.poll_action()),
        (vec![canceled(0, 12)], None)
    );
}

#[test]
fn compaction_before_the_announcement_comes_after_it() {
    let mut stream = stream();
    create(
        &mut stream,
        WatchCreateRequest {
            start_revision: 2,
            ..watch("a")
        },
        9,
    );
    let key = asked(&mut stream);
    stream.compacted(key, 6);
    assert_eq!(output(&mut stream), []);
    stream.created(key, 9);
    let end = WatchResponse {
        compact_revision: 6,
        ..canceled(0, 0)
    };
    assert_eq!(output(&mut stream), [created(0, 9), end]);
    assert_eq!(stream.live_watchers().count(), 0);
}

#[test]
fn an_ended_watcher_says_why() {
    let (mut stream, key) = with_watcher(watch("a"));
    stream.ended(key, "why");
    assert_eq!(
        output(&mut stream),
        [WatchResponse {
            cancel_reason: "why".into(),
            ..canceled(0, 10)
        }]
    );
}

#[test]
fn progress_needs_a_watcher_and_all_of_them_at_the_revision() {
    let mut stream = stream();
    ask_progress(&mut stream, 5);
    assert_eq!(stream.poll_action(), Some(WatchAction::Progress));
    stream.progress(5);
    assert_eq!(output(&mut stream), [], "no watcher");

    create(&mut stream, watch("a"), 5);
    let key = asked(&mut stream);
    ask_progress(&mut stream, 5);
    assert_eq!(
        stream.poll_action(),
        None,
        "its turn comes after the create"
    );
    stream.created(key, 5);
    assert_eq!(stream.poll_action(), Some(WatchAction::Progress));
    stream.events(key, 6, vec![put(6, 1)]);
    stream.progress(6);
    let events = WatchResponse {
        events: vec![put(6, 1)],
        ..message(0, 6)
    };
    assert_eq!(
        output(&mut stream),
        [created(0, 5), events, message(NO_WATCH_ID, 6)]
    );

    create(
        &mut stream,
        WatchCreateRequest {
            start_revision: 9,
            ..watch("b")
        },
        6,
    );
    let future = asked(&mut stream);
    stream.created(future, 6);
    stream.progress(8);
    stream.progress(9);
    assert_eq!(
        output(&mut stream),
        [created(1, 6), message(NO_WATCH_ID, 9)]
    );
}

#[test]
fn idle_watchers_that_asked_get_progress_with_their_id() {
    let (mut stream, key) = with_watcher(WatchCreateRequest {
        progress_notify: true,
        ..watch("a")
    });
    create(&mut stream, watch("b"), 10);
    let other = asked(&mut stream);
    stream.created(other, 10);
    assert_eq!(output(&mut stream), [created(1, 10)]);
    assert_eq!(stream.idle_watchers(), [key]);
    stream.progress_of(key, 12);
    assert_eq!(output(&mut stream), [message(0, 12)]);
    stream.events(key, 13, vec![put(13, 1)]);
    assert_eq!(
        stream.idle_watchers(),
        [],
        "an event spares one notification"
    );
    assert_eq!(stream.idle_watchers(), [key]);
    output(&mut stream);
}

#[test]
fn filters_and_previous_pairs() {
    let check = |filters: &[FilterType], prev_kv: bool, want: &[(EventType, bool)]| {
        let filters = filters.iter().map(|filter| *filter as i32).collect();
        let (mut stream, key) = with_watcher(WatchCreateRequest {
            filters,
            prev_kv,
            ..watch("a")
        });
        stream.events(
            key,
            11,
            vec![
                event(EventType::Put, 11, 1),
                event(EventType::Delete, 11, 0),
            ],
        );
        let events: Vec<Event> = output(&mut stream)
            .into_iter()
            .flat_map(|m| m.events)
            .collect();
        let got: Vec<_> = events
            .iter()
            .map(|e| (e.r#type(), e.prev_kv.is_some()))
            .collect();
        assert_eq!(got, want);
    };
    check(
        &[],
        true,
        &[(EventType::Put, true), (EventType::Delete, true)],
    );
    check(
        &[],
        false,
        &[(EventType::Put, false), (EventType::Delete, false)],
    );
    check(&[FilterType::Noput], false, &[(EventType::Delete, false)]);
    check(&[FilterType::Nodelete], false, &[(EventType::Put, false)]);
    check(&[FilterType::Noput, FilterType::Nodelete], false, &[]);
}

#[test]
fn batches_split_between_revisions_and_only_fragments_inside_one() {
    const KIB: usize = 1024;
    // Events as (revision, KiB), a limit of 10 KiB; messages as (revisions, fragment).
    let check = |fragment: bool, events: &[(i64, usize)], want: &[(&[i64], bool)]| {
        let limits = WatchStreamLimits {
            max_message: 10 * KIB,
            ..WatchStreamLimits::default()
        };
        let mut stream = WatchStream::new(ids(), limits);
        create(
            &mut stream,
            WatchCreateRequest {
                fragment,
                ..watch("a")
            },
            1,
        );
        let key = asked(&mut stream);
        stream.created(key, 1);
        assert_eq!(output(&mut stream), [created(0, 1)]);
        stream.events(
            key,
            99,
            events
                .iter()
                .map(|(revision, kib)| put(*revision, kib * KIB))
                .collect(),
        );
        let messages = output(&mut stream);
        let got: Vec<(Vec<i64>, bool)> = messages
            .iter()
            .map(|m| {
                let revisions = m
                    .events
                    .iter()
                    .map(|e| e.kv.as_ref().unwrap().mod_revision)
                    .collect();
                assert_eq!(m.header.as_ref().unwrap().revision, 99);
                assert!(m.encoded_len() <= limits.max_message || !fragment || m.events.len() == 1);
                (revisions, m.fragment)
            })
            .collect();
        let want: Vec<(Vec<i64>, bool)> = want
            .iter()
            .map(|(revisions, fragment)| (revisions.to_vec(), *fragment))
            .collect();
        assert_eq!(got, want, "fragment {fragment} {events:?}");
    };
    for fragment in [false, true] {
        check(fragment, &[(2, 1), (3, 1), (4, 1)], &[(&[2, 3, 4], false)]);
        check(
            fragment,
            &[(2, 6), (3, 6), (4, 1)],
            &[(&[2], false), (&[3, 4], false)],
        );
        check(
            fragment,
            &[(2, 6), (3, 3), (3, 3)],
            &[(&[2], false), (&[3, 3], false)],
        );
        check(fragment, &[(2, 30)], &[(&[2], false)]);
    }
    let large = [(2, 1), (3, 6), (3, 6), (3, 6), (4, 1)];
    check(
        false,
        &large,
        &[(&[2], false), (&[3, 3, 3], false), (&[4], false)],
    );
    check(
        true,
        &large,
        &[
            (&[2], false),
            (&[3], true),
            (&[3], true),
            (&[3], false),
            (&[4], false),
        ],
    );
}

#[test]
fn limits_hold() {
    let limits = WatchStreamLimits {
        max_watchers: 1,
        max_pending: 3,
        ..WatchStreamLimits::default()
    };
    let mut stream = WatchStream::new(ids(), limits);
    create(&mut stream, watch("a"), 1);
    create(&mut stream, watch("b"), 1);
    assert!(stream.has_room());
    cancel(&mut stream, 5, 1);
    assert!(!stream.has_room());
    let key = asked(&mut stream);
    assert_eq!(stream.poll_action(), None);
    stream.created(key, 1);
    assert!(stream.has_room());
    assert_eq!(
        output(&mut stream),
        [created(0, 1), refused("etcdserver: too many requests", 1)]
    );
}

#[test]
fn watchers_that_are_over_do_not_count_and_do_not_pile_up() {
    let limits = WatchStreamLimits {
        max_watchers: 2,
        ..WatchStreamLimits::default()
    };
    let mut stream = WatchStream::new(ids(), limits);
    for id in 0..5 {
        create(&mut stream, watch("a"), 9);
        let key = asked(&mut stream);
        stream.created(key, 9);
        stream.compacted(key, 6);
        let end = WatchResponse {
            compact_revision: 6,
            ..canceled(id, 0)
        };
        assert_eq!(output(&mut stream), [created(id, 9), end]);
    }
    // The last two ids are still known, older ones are not.
    for (id, want) in [
        (2, vec![]),
        (3, vec![canceled(3, 9)]),
        (4, vec![canceled(4, 9)]),
    ] {
        cancel(&mut stream, id, 9);
        assert_eq!((output(&mut stream), stream.poll_action()), (want, None));
    }
}

#[test]
fn an_empty_message_is_ignored() {
    let mut stream = stream();
    stream.handle_request(
        WatchRequest {
            request_union: None,
        },
        3,
    );
    assert_eq!((stream.poll_action(), output(&mut stream)), (None, vec![]));
}

#[test]
fn shared_events_are_told_as_others_are() {
    let wide = [
        event(EventType::Put, 12, 900),
        event(EventType::Delete, 12, 0),
        event(EventType::Put, 12, 900),
    ];
    let narrow = [event(EventType::Put, 12, 3)];
    let small = WatchStreamLimits {
        max_message: 1000,
        ..WatchStreamLimits::default()
    };
    for watch_id in [0, 7, -3] {
        for filters in [vec![], vec![FilterType::Noput], vec![FilterType::Nodelete]] {
            for (prev_kv, fragment) in [(false, false), (true, false), (false, true), (true, true)]
            {
                for (events, announced) in
                    [(&wide[..], true), (&narrow[..], true), (&wide[..], false)]
                {
                    let told = |shared: bool| {
                        let mut stream = WatchStream::new(ids(), small);
                        let request = WatchCreateRequest {
                            watch_id,
                            prev_kv,
                            fragment,
                            progress_notify: true,
                            filters: filters.iter().map(|f| *f as i32).collect(),
                            ..watch("k")
                        };
                        create(&mut stream, request, 10);
                        let key = asked(&mut stream);
                        if announced {
                            stream.created(key, 10);
                        }
                        if shared {
                            let shared = SharedEvents::new(events.to_vec());
                            stream.shared_events(key, 13, &shared);
                        } else {
                            stream.events(key, 13, events.to_vec());
                        }
                        stream.created(key, 10);
                        (stream.idle_watchers(), output(&mut stream))
                    };
                    let case = (watch_id, &filters, prev_kv, fragment, announced);
                    assert_eq!(told(true), told(false), "{case:?}");
                }
            }
        }
    }
}

#[test]
fn all_that_waits_is_one_output_up_to_a_bound() {
    let (mut stream, key) = with_watcher(watch("k"));
    let shared = SharedEvents::new(vec![put(11, 100)]);
    for revision in 11..31 {
        stream.shared_events(key, revision, &shared);
        stream.progress(revision);
    }
    let queued = stream.queued_bytes();
    let some = stream.poll_output(1000).unwrap();
    assert!((1000..1300).contains(&some.len()), "{}", some.len());
    let rest = stream.poll_output(usize::MAX).unwrap();
    assert!(some.len() + rest.len() > queued && stream.queued_bytes() == 0);
    assert_eq!(stream.poll_output(1), None);
    let mut all = BytesMut::from(&some[..]);
    all.extend_from_slice(&rest);
    let revisions: Vec<i64> = messages(all)
        .iter()
        .filter_map(|message| Some(message.header.as_ref()?.revision))
        .collect();
    let want: Vec<i64> = (11..31).flat_map(|revision| [revision; 2]).collect();
    assert_eq!(revisions, want);
}
