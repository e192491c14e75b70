//! `/metrics` under etcd's names: what dashboards and alerts for etcd look at, as far as it exists here.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Buf as _;
use causeway_engine::route::Mode;
use causeway_wire::etcd::json::{MethodName, methods};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::http::{HeaderMap, Response};
use tonic::body::Body;
use tonic::{Code, Status};

use super::Front;
use super::answer::Answer;
use super::http::cluster_release;

/// gRPC's codes as grpc-go names them, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Calls of each method.
#[derive(Debug)]
pub(super) struct Calls(HashMap<String, Arc<Row>>);

#[derive(Debug)]
struct Row {
    name: MethodName,
    started: AtomicU64,
    handled: [AtomicU64; CODES.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

impl Default for Calls {
    fn default() -> Self {
        let rows = methods().map(|name| {
            let path = format!("/{}/{}", name.service, name.method);
            let row = Row {
                name,
                started: AtomicU64::new(0),
                handled: std::array::from_fn(|_| AtomicU64::new(0)),
                received: AtomicU64::new(0),
                sent: AtomicU64::new(0),
            };
            (path, Arc::new(row))
        });
        Calls(rows.collect())
    }
}

impl Calls {
    /// A call begins; nothing for a name that etcd does not have, as in etcd.
    pub(super) fn begin(&self, path: &str) -> Option<Call> {
        let row = self.0.get(path)?.clone();
        row.started.fetch_add(1, Ordering::Relaxed);
        Some(Call(Some(row)))
    }

    /// Calls of a method that were answered well.
    fn done(&self, path: &str) -> u64 {
        self.0.get(path).map_or(0, |row| load(&row.handled[0]))
    }

    /// Streams of a method that are open.
    fn open(&self, path: &str) -> u64 {
        self.0.get(path).map_or(0, |row| {
            let over: u64 = row.handled.iter().map(load).sum();
            load(&row.started).saturating_sub(over)
        })
    }

    fn sum(&self, of: impl Fn(&Row) -> u64) -> u64 {
        self.0.values().map(|row| of(row)).sum()
    }
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

/// A call that has begun. One that ends without a status was given up by its client.
#[derive(Debug)]
pub(super) struct Call(Option<Arc<Row>>);

impl Call {
    /// Counts a request's bytes.
    pub(super) fn request(&self, body: Body) -> Body {
        match &self.0 {
            Some(row) => Body::new(Counted {
                body,
                row: row.clone(),
                call: None,
            }),
            None => body,
        }
    }

    /// Counts an answer's bytes, and how it ends.
    pub(super) fn response(mut self, response: Response<Answer>) -> Response<Answer> {
        let Some(row) = self.0.clone() else {
            return response;
        };
        if let Some(code) = code_in(response.headers()) {
            self.end(code);
            return response;
        }
        response.map(|body| {
            Answer::Counted(Box::new(Counted {
                body,
                row,
                call: Some(self),
            }))
        })
    }

    fn end(&mut self, code: Code) {
        if let Some(row) = self.0.take()
            && let Some(count) = usize::try_from(i32::from(code))
                .ok()
                .and_then(|code| row.handled.get(code))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

fn code_in(headers: &HeaderMap) -> Option<Code> {
    let code = headers.get(Status::GRPC_STATUS)?;
    Some(Code::from_bytes(code.as_bytes()))
}

/// A body whose bytes are counted: an answer's when it belongs to a call, a request's otherwise.
pub(super) struct Counted<B> {
    body: B,
    row: Arc<Row>,
    call: Option<Call>,
}

impl<B: HttpBody<Error = Status> + Unpin> HttpBody for Counted<B> {
    type Data = B::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Status>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            if let Some(data) = frame.data_ref() {
                let counter = match this.call {
                    Some(_) => &this.row.sent,
                    None => &this.row.received,
                };
                counter.fetch_add(data.remaining() as u64, Ordering::Relaxed);
            }
            if let (Some(call), Some(trailers)) = (&mut this.call, frame.trailers_ref()) {
                call.end(code_in(trailers).unwrap_or(Code::Unknown));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What Prometheus reads.
pub(super) fn text(front: &Front) -> String {
    let (revision, compacted, keys, leases, watches, held) = front
        .gateway
        .with(|core| {
            let keys = core.keys();
            let of = (
                keys.revision(),
                keys.compact_revision(),
                keys.len(),
                keys.leases().count(),
            );
            let held = keys.history_bytes();
            (of.0, of.1, of.2, of.3, core.key_watches().0.len(), held)
        })
        .0;
    let (seen, _) = front.look_at_member();
    let cluster = cluster_release(front, &seen);
    let calls = &front.calls;
    let ids = front.identity.ids();
    let mut out = Text::default();

    out.gauge(
        "etcd_server_has_leader",
        "Whether requests are answered.",
        1,
    );
    out.gauge("etcd_server_is_leader", "Always: there is one member.", 1);
    out.gauge("etcd_server_is_learner", "Never.", 0);
    out.counter(
        "etcd_server_leader_changes_seen_total",
        "None: there is one member.",
        0,
    );
    let version = front.identity.version();
    let id = format!("{:x}", ids.member_id);
    for (name, label, value) in [
        ("etcd_server_version", "server_version", version),
        ("etcd_cluster_version", "cluster_version", cluster.short()),
        ("etcd_server_id", "server_id", id),
    ] {
        out.head(name, "gauge", "1 for the value in its label.");
        out.row(name, &[(label, &value)], 1);
    }
    let writes = WRITES.iter().map(|path| calls.done(path)).sum::<u64>();
    for (name, help) in [
        (
            "etcd_server_proposals_committed_total",
            "Writes by clients that were acknowledged.",
        ),
        ("etcd_server_proposals_applied_total", "The same."),
    ] {
        out.gauge(name, help, writes);
    }
    out.gauge(
        "etcd_server_proposals_pending",
        "None: a write is done at once.",
        0,
    );
    out.counter("etcd_server_proposals_failed_total", "None.", 0);
    out.gauge(
        "etcd_server_quota_backend_bytes",
        "Below 0: there is no quota.",
        -1,
    );
    for (name, help) in [
        ("etcd_mvcc_db_total_size_in_bytes", "About the bytes taken."),
        (
            "etcd_mvcc_db_total_size_in_use_in_bytes",
            "About the bytes taken.",
        ),
    ] {
        out.gauge(name, help, seen.bytes);
    }
    for (name, help, path) in [
        (
            "etcd_mvcc_range_total",
            "Ranges of clients.",
            "/etcdserverpb.KV/Range",
        ),
        (
            "etcd_mvcc_put_total",
            "Puts of clients.",
            "/etcdserverpb.KV/Put",
        ),
        (
            "etcd_mvcc_delete_total",
            "Deletions of clients.",
            "/etcdserverpb.KV/DeleteRange",
        ),
        (
            "etcd_mvcc_txn_total",
            "Transactions of clients.",
            "/etcdserverpb.KV/Txn",
        ),
        (
            "etcd_debugging_lease_granted_total",
            "Leases granted.",
            "/etcdserverpb.Lease/LeaseGrant",
        ),
        (
            "etcd_debugging_lease_revoked_total",
            "Leases revoked by clients.",
            "/etcdserverpb.Lease/LeaseRevoke",
        ),
    ] {
        out.counter(name, help, calls.done(path));
    }
    for (name, help, value) in [
        (
            "etcd_debugging_mvcc_current_revision",
            "The revision.",
            revision,
        ),
        (
            "etcd_debugging_mvcc_compact_revision",
            "The revision of the last compaction.",
            compacted,
        ),
    ] {
        out.gauge(name, help, value);
    }
    out.gauge("etcd_debugging_mvcc_keys_total", "Keys.", keys);
    out.gauge("etcd_debugging_mvcc_watcher_total", "Watches.", watches);
    out.gauge(
        "etcd_debugging_mvcc_watch_stream_total",
        "Streams of watches.",
        calls.open("/etcdserverpb.Watch/Watch"),
    );
    out.gauge(
        "etcd_debugging_mvcc_slow_watcher_total",
        "None: a watch is told at once.",
        0,
    );
    out.counter(
        "etcd_network_client_grpc_received_bytes_total",
        "Bytes of requests.",
        calls.sum(|row| load(&row.received)),
    );
    out.counter(
        "etcd_network_client_grpc_sent_bytes_total",
        "Bytes of answers.",
        calls.sum(|row| load(&row.sent)),
    );
    out.calls(calls);
    out.process();

    out.gauge("causeway_etcd_leases", "Leases known here.", leases);
    out.gauge(
        "causeway_etcd_history_bytes",
        "About the bytes that the history takes.",
        held,
    );
    out.gauge(
        "causeway_etcd_relayed",
        "Whether the legacy cluster answers everything.",
        u8::from(front.mode() == Mode::Relay),
    );
    out.0
}

/// Methods that etcd's consensus would be asked about.
const WRITES: [&str; 6] = [
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
];

#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// No value of a label here has a character that would have to be escaped.
    fn row(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\""))
            .collect();
        let _ = match labels.as_slice() {
            [] => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.row(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.row(name, &[], value);
    }

    fn calls(&mut self, calls: &Calls) {
        let mut rows: Vec<&Arc<Row>> = calls.0.values().collect();
        rows.sort_by_key(|row| (&row.name.service, &row.name.method));
        let labels = |row: &Row| {
            [
                ("grpc_method", row.name.method.clone()),
                ("grpc_service", row.name.service.clone()),
                ("grpc_type", kind(&row.name).to_owned()),
            ]
        };
        let name = "grpc_server_started_total";
        self.head(name, "counter", "Calls that began.");
        for row in &rows {
            let labels = labels(row);
            let labels = labels
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            self.row(name, &labels, load(&row.started));
        }
        let name = "grpc_server_handled_total";
        self.head(name, "counter", "Calls that ended, by their status.");
        for row in &rows {
            let labels = labels(row);
            for (code, count) in CODES.iter().zip(&row.handled) {
                let count = load(count);
                if count > 0 || *code == "OK" {
                    let [method, service, kind] = labels
                        .each_ref()
                        .map(|(name, value)| (*name, value.as_str()));
                    self.row(name, &[("grpc_code", code), method, service, kind], count);
                }
            }
        }
    }

    /// What Prometheus' own libraries tell of every process.
    fn process(&mut self) {
        let open = std::fs::read_dir("/proc/self/fd").map(Iterator::count);
        if let Ok(open) = open {
            self.gauge("process_open_fds", "Open files.", open);
        }
        if let Some(most) = file_limit() {
            self.gauge("process_max_fds", "Files that may be open.", most);
        }
        if let Some(kilobytes) = own_status("VmRSS:") {
            let help = "Memory that is resident.";
            self.gauge("process_resident_memory_bytes", help, kilobytes * 1024);
        }
        if let Some(seconds) = cpu_seconds() {
            self.counter("process_cpu_seconds_total", "Time on a processor.", seconds);
        }
    }
}

/// grpc-prometheus' word for it.
fn kind(name: &MethodName) -> &'static str {
    match (name.client_streams, name.server_streams) {
        (false, false) => "unary",
        (true, false) => "client_stream",
        (false, true) => "server_stream",
        (true, true) => "bidi_stream",
    }
}

/// How many files the process may have open.
pub(super) fn file_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|l| l.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn own_status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time; the kernel counts them in hundredths of a second for every program (`USER_HZ`).
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name before may hold blanks.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_how_they_end() {
        let calls = Calls::default();
        let path = "/etcdserverpb.KV/Put";
        assert!(calls.begin("/etcdserverpb.KV/Nope").is_none());
        let refused = Answer::refusal(Status::not_found("gone"));
        calls.begin(path).expect("known").response(refused);
        drop(calls.begin(path));
        let answered = Body::new(axum::body::Body::from("x"));
        let answered = Response::new(Answer::Made(answered));
        let open = calls.begin(path).expect("known").response(answered);
        assert_eq!((calls.open(path), calls.done(path)), (1, 0));
        drop(open);
        let row = &calls.0[path];
        let counts: Vec<u64> = row.handled.iter().map(load).collect();
        assert_eq!((counts[1], counts[5], load(&row.started)), (2, 1, 3));
        assert_eq!(calls.open(path), 0);
        let mut text = Text::default();
        text.calls(&calls);
        assert!(text.0.contains(
            "grpc_server_handled_total{grpc_code=\"NotFound\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1\n"
        ), "{}", text.0);
        assert!(text.0.contains(
            "grpc_server_started_total{grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} 0\n"
        ));
    }

    #[test]
    fn what_the_process_tells_of_itself() {
        let mut text = Text::default();
        text.process();
        for name in [
            "process_open_fds",
            "process_max_fds",
            "process_resident_memory_bytes",
            "process_cpu_seconds_total",
        ] {
            assert!(text.0.contains(&format!("\n{name} ")), "{name}: {}", text.0);
        }
    }
}
