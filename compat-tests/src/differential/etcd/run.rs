//! Runs a script against a server and tells, step by step, everything that came back.
//!
//! One step at a time, whichever client it belongs to: what races in the script would race on the server and
//! be no difference. What is asynchronous all the same is made definite:
//!
//! - **Watch streams.** Before its first watch each stream gets a hidden watcher on a key of the runner's own
//!   ([`SENTINEL`]). After every step that may have effects the runner writes that key and reads each stream
//!   until the write shows. etcd queues the events of a stream's watchers in the order of revisions, so
//!   whatever the step caused has arrived by then and belongs to it. Progress requests would not do: etcd 3.4
//!   answers them out of turn, and a stream without watchers never. The write costs a revision, on every
//!   server alike. Whether requests on the stream were taken at all is asked by an echo behind them.
//! - **Watchers that start in the past** are fed by a loop of their own every 100 ms (etcd:
//!   `watchableStore.syncWatchersLoop`), outside that order. Each round of it feeds all that are there, so that a
//!   step that creates one has a hidden one created behind it and waits until that is fed, or cancelled for
//!   compaction.
//! - **Locks and campaigns** that are not answered within [`SETTLE`] are waiting; while any is, each step with
//!   effects gives them that time again. Observers get it too.
//!
//! A client that has logged in shows its token from then on, with requests and with streams that it opens. The
//! runner speaks as the first client, which a script that enables authentication makes `root`.
//!
//! The server is the bench's own: at the end every lease on it is revoked, all below the root deleted, and after a
//! script with users they and their roles are gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use prost_reflect::{DynamicMessage, MessageDescriptor, Value as Wire};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};
use tonic::Code;

use super::http::Http;
use super::names::{Names, Revisions, int};
use super::operation::{Call, Operation, StreamKind, StreamName, path};
use super::value::{Value, fill_in};
use crate::differential::compare::Seen;
use crate::differential::script::Script;
use crate::raw::etcd::{Client, Failure, Metadata, Stream, method};

/// The key of the barrier; it sorts after all keys that scripts use.
const SENTINEL: &str = "$~";

/// The root of every run among registrations, and of the barrier's key then: a layout has to name them
/// beforehand. The barrier lies there too, since between two classes of keys there is no order to rely on.
pub const REGISTRATIONS: [&str; 2] = ["compat-differential", "compat-barrier"];

/// The id of the hidden watcher, far from those that scripts choose and servers count up from 0. Echoes have those above it.
const HIDDEN: i64 = 42_424_242;

/// The ids of hidden watchers from the past lie above this.
const FED: i64 = 2 * HIDDEN;

/// Any reply that is not meant to wait comes within this time.
const REPLY: Duration = Duration::from_secs(10);

/// How long something that may or may not come is waited for.
const SETTLE: Duration = Duration::from_millis(400);

/// Runs `script` below `root` at `address` (`host:port`), until `deadline`.
pub(super) async fn run(
    address: &str,
    root: &str,
    script: &Script<Operation>,
    revisions: Revisions,
    deadline: Instant,
) -> Result<Vec<Seen>> {
    let place = script
        .settings
        .get("place")
        .map_or("general", String::as_str);
    let (names, sentinel) = match place {
        "general" => (Names::new(root), SENTINEL.to_string()),
        "registrations" => {
            let [below, barrier] = REGISTRATIONS;
            (Names::below(below, root), format!("{barrier}/~"))
        }
        other => bail!("set place general or registrations, not {other}"),
    };
    let is_json = match script.settings.get("wire").map(String::as_str) {
        None | Some("grpc") => false,
        Some("json") => true,
        Some(other) => bail!("set wire grpc or json, not {other}"),
    };
    let mut run = Run::start(address, names, sentinel, script.clients, is_json).await?;
    run.has_users = script
        .steps
        .iter()
        .flat_map(|step| &step.ops)
        .any(|(_, op)| op.is_about_users());
    for (index, step) in script.steps.iter().enumerate() {
        // What one client sends together is concurrent on HTTP/2 and has no order; it is done in turn.
        for (client, operation) in &step.ops {
            if Instant::now() > deadline {
                bail!("no time left at step {}", index + 1);
            }
            run.step = index;
            run.operation(*client, operation)
                .await
                .with_context(|| format!("step {}: {operation}", index + 1))?;
        }
    }
    let mut seen = std::mem::take(&mut run.seen);
    run.names.finish(&mut seen, revisions);
    run.end().await?;
    Ok(seen)
}

struct Run {
    /// The runner's own.
    own: Client,
    clients: Vec<Client>,
    /// Of the last login of each client.
    tokens: BTreeMap<usize, String>,
    /// Whether the script makes users or roles.
    has_users: bool,
    http: Http,
    names: Names,
    started: Instant,
    streams: BTreeMap<(usize, StreamName), Open>,
    waiting: Vec<Waiting>,
    sentinel: String,
    sentinels: u64,
    step: usize,
    seen: Vec<Seen>,
}

struct Open {
    stream: Stream,
    closed: bool,
    over: bool,
    /// Whether the hidden watcher was asked for.
    hidden: bool,
    echo: i64,
    fed: i64,
    /// Watch responses that were read before the barrier.
    early: Vec<DynamicMessage>,
    ending: Option<String>,
}

struct Waiting {
    client: usize,
    operation: Operation,
    method: String,
    task: JoinHandle<Result<Bytes, Failure>>,
}

impl Run {
    async fn start(
        address: &str,
        names: Names,
        sentinel: String,
        count: usize,
        is_json: bool,
    ) -> Result<Run> {
        let mut clients = Vec::new();
        for _ in 0..count.max(1) {
            clients.push(if is_json {
                Client::json(address)?
            } else {
                Client::connect(address).await?
            });
        }
        let mut run = Run {
            own: Client::connect(address).await?,
            clients,
            tokens: BTreeMap::new(),
            has_users: false,
            http: Http::new(address)?,
            names,
            started: Instant::now(),
            streams: BTreeMap::new(),
            waiting: Vec::new(),
            sentinel,
            sentinels: 0,
            step: 0,
            seen: Vec::new(),
        };
        run.names.base = run.write_sentinel().await?;
        Ok(run)
    }

    async fn operation(&mut self, client: usize, operation: &Operation) -> Result<()> {
        match &operation.call {
            Call::Unary {
                method: name,
                extra,
                request,
            } => {
                let path = path(name);
                let descriptor = method(&path).with_context(|| format!("no method {path}"))?;
                let message = request.encode(&descriptor.input(), &self.names)?;
                let extra = extra.map(|extra| extra.metadata());
                let token = self.tokens.get(&client).cloned();
                let connection = self.client(client)?;
                let mut task = tokio::spawn(async move {
                    let token = token.as_deref().map(|token| ("token", token));
                    let metadata: Vec<(&str, &str)> = extra.or(token).into_iter().collect();
                    connection.unary(&path, &metadata, message.into()).await
                });
                let may_wait = matches!(name.as_str(), "Lock/Lock" | "Election/Campaign");
                let limit = if may_wait { SETTLE } else { REPLY };
                match timeout(limit, &mut task).await {
                    Ok(reply) => {
                        let reply = reply?;
                        if let (Ok(message), "Auth/Authenticate") = (&reply, name.as_str()) {
                            let login =
                                DynamicMessage::decode(descriptor.output(), message.clone())?;
                            if let Some(Wire::String(token)) =
                                login.get_field_by_name("token").as_deref()
                            {
                                self.tokens.insert(client, token.clone());
                            }
                        }
                        let text = self.reply(name, operation.mark, reply);
                        self.tell(client, operation, text);
                    }
                    Err(_) if may_wait => {
                        self.tell(client, operation, "waits");
                        self.waiting.push(Waiting {
                            client,
                            operation: operation.clone(),
                            method: name.clone(),
                            task,
                        });
                    }
                    Err(_) => {
                        task.abort();
                        self.tell(client, operation, "no reply");
                    }
                }
            }
            Call::Raw {
                method: name,
                bytes,
            } => {
                let bytes = fill_in(bytes, &self.names)?;
                let path = path(name);
                // What it says is said in protobuf, whatever the others speak.
                let call = self.own.clone();
                let token = self.tokens.get(&client).cloned();
                let metadata = token
                    .iter()
                    .map(|token| ("token", token.as_str()))
                    .collect::<Vec<_>>();
                let call = call.unary(&path, &metadata, bytes.into());
                let text = match timeout(REPLY, call).await {
                    Ok(reply) => self.reply(name, operation.mark, reply),
                    Err(_) => "no reply".to_string(),
                };
                self.tell(client, operation, text);
            }
            Call::Http { verb, path, body } => {
                let text = self.http.ask(verb, path, body, &self.names).await?;
                self.tell(client, operation, text);
            }
            Call::Open(stream, extra) => self.open(client, *stream, &[extra.metadata()])?,
            Call::Send { stream, requests } => self.send(client, *stream, requests).await?,
            Call::Close(stream) => self.close(client, *stream).await,
            Call::Drop(stream) => {
                if self.streams.remove(&(client, *stream)).is_none() {
                    self.tell(client, operation, "not open");
                }
            }
            Call::Sleep(millis) => sleep(Duration::from_millis(*millis)).await,
        }
        if operation.may_have_effects() {
            self.settle().await?;
            self.barrier().await?;
        }
        Ok(())
    }

    fn open(&mut self, client: usize, name: StreamName, metadata: Metadata<'_>) -> Result<()> {
        let key = (client, name);
        if self.streams.get(&key).is_none_or(|open| open.over) {
            let token = self.tokens.get(&client);
            let token = token.map(|token| ("token", token.as_str()));
            let metadata: Vec<_> = metadata.iter().copied().chain(token).collect();
            let opened = self.client(client)?.stream(name.kind.path(), &metadata);
            let stream = opened.map_err(|failure| anyhow!("{failure:?}"))?;
            let open = Open {
                stream,
                closed: false,
                over: false,
                hidden: false,
                echo: 0,
                fed: 0,
                early: Vec::new(),
                ending: None,
            };
            self.streams.insert(key, open);
        }
        Ok(())
    }

    async fn send(&mut self, client: usize, name: StreamName, requests: &[Value]) -> Result<()> {
        let input = method(name.kind.path())
            .context("streams are etcd's")?
            .input();
        let key = (client, name);
        self.open(client, name, &[])?;
        let mut encoded = Vec::new();
        for request in requests {
            encoded.push(request.encode(&input, &self.names)?);
        }
        if name.kind == StreamKind::Watch {
            self.hide_between(key, requests, &mut encoded, &input)?;
        }
        let from_the_past = requests.iter().any(|request| {
            request
                .field("create_request")
                .is_some_and(|create| create.field("start_revision").is_some())
        });
        // All that a stream of JSON is asked goes out together.
        let in_one = self.client(client)?.is_json() || name.kind == StreamKind::Observe;
        let feed = if in_one && from_the_past {
            Some(self.feed(key, &mut encoded, &input)?)
        } else {
            None
        };
        let open = self.streams.get_mut(&key).context("just opened")?;
        if open.closed {
            self.tell(client, name, "closed");
            return Ok(());
        }
        for message in encoded {
            open.stream.send(message.into());
        }
        if in_one {
            open.stream.half_close();
            open.closed = true;
        }
        match name.kind {
            StreamKind::KeepAlive => {
                for _ in requests {
                    if !self.next_line(key, REPLY).await {
                        break;
                    }
                }
                // The end shows that nothing else comes; the next request begins anew.
                if in_one {
                    while self.next_line(key, REPLY).await {}
                }
            }
            StreamKind::Observe => {}
            StreamKind::Watch => {
                self.until_answered(key).await?;
                if from_the_past {
                    self.caught_up(key, feed, &input).await?;
                }
            }
        }
        Ok(())
    }

    /// Adds the runner's own requests: the hidden watcher when the stream has none yet, before the script's
    /// first watcher, and behind everything an echo, that is a watcher which is cancelled at once. etcd answers
    /// creates and cancels in the order of the requests, though not in step with events.
    fn hide_between(
        &mut self,
        key: (usize, StreamName),
        requests: &[Value],
        encoded: &mut Vec<Vec<u8>>,
        input: &MessageDescriptor,
    ) -> Result<()> {
        let sentinel = Value::text(self.sentinel.as_str());
        let open = self.streams.get_mut(&key).context("just opened")?;
        let create = |id: i64| {
            let create = Value::message([("key", sentinel.clone()), ("watch_id", Value::Int(id))]);
            Value::message([("create_request", create)]).encode(input, &self.names)
        };
        if !open.hidden {
            open.hidden = true;
            let watches = requests
                .iter()
                .any(|request| request.field("create_request").is_some());
            let at = if watches { 0 } else { encoded.len() };
            encoded.insert(at, create(HIDDEN)?);
        }
        open.echo += 1;
        let echo = HIDDEN + open.echo;
        encoded.push(create(echo)?);
        let cancel = Value::message([("watch_id", Value::Int(echo))]);
        encoded.push(Value::message([("cancel_request", cancel)]).encode(input, &self.names)?);
        Ok(())
    }

    /// Waits for the echo; what comes before it is kept for the barrier.
    async fn until_answered(&mut self, key: (usize, StreamName)) -> Result<()> {
        let output = method(StreamKind::Watch.path())
            .context("streams are etcd's")?
            .output();
        let open = self.streams.get_mut(&key).context("just opened")?;
        let deadline = tokio::time::Instant::now() + REPLY;
        loop {
            match timeout_at(deadline, open.stream.next()).await {
                Ok(Some(Ok(message))) => {
                    let message = DynamicMessage::decode(output.clone(), message)?;
                    let echo = int(&message, "watch_id") == HIDDEN + open.echo;
                    if echo && flag(&message, "canceled") {
                        return Ok(());
                    }
                    open.early.push(message);
                }
                Ok(Some(Err(failure))) => open.ending = Some(failed(&mut self.names, &failure)),
                Ok(None) => open.ending = Some("end".to_string()),
                Err(_) => open.ending = Some("silent".to_string()),
            }
            if open.ending.is_some() {
                return Ok(());
            }
        }
    }

    /// Adds a hidden watcher from the past behind everything; gives its id.
    fn feed(
        &mut self,
        key: (usize, StreamName),
        encoded: &mut Vec<Vec<u8>>,
        input: &MessageDescriptor,
    ) -> Result<i64> {
        let open = self.streams.get_mut(&key).context("just opened")?;
        open.fed += 1;
        let id = FED + open.fed;
        // The first sentinel has that revision.
        let create = Value::message([
            ("key", Value::text(self.sentinel.as_str())),
            ("watch_id", Value::Int(id)),
            ("start_revision", Value::Int(self.names.base)),
        ]);
        let create = Value::message([("create_request", create)]);
        encoded.push(create.encode(input, &self.names)?);
        Ok(id)
    }

    /// Waits until watchers from the past have what is theirs, which a hidden one shows that was asked for behind
    /// them; a stream that ends or is silent shows at the barrier.
    async fn caught_up(
        &mut self,
        key: (usize, StreamName),
        asked: Option<i64>,
        input: &MessageDescriptor,
    ) -> Result<()> {
        let output = method(StreamKind::Watch.path())
            .context("streams are etcd's")?
            .output();
        let mut behind = Vec::new();
        let id = match asked {
            Some(id) => id,
            None => self.feed(key, &mut behind, input)?,
        };
        let open = self.streams.get_mut(&key).context("just opened")?;
        for create in behind {
            open.stream.send(create.into());
        }
        let is_fed = |message: &DynamicMessage| {
            let fed = !events(message).is_empty() || flag(message, "canceled");
            fed && int(message, "watch_id") == id
        };
        if open.early.iter().any(is_fed) {
            return Ok(());
        }
        let deadline = tokio::time::Instant::now() + REPLY;
        while open.ending.is_none() {
            match timeout_at(deadline, open.stream.next()).await {
                Ok(Some(Ok(message))) => {
                    let message = DynamicMessage::decode(output.clone(), message)?;
                    let fed = is_fed(&message);
                    open.early.push(message);
                    if fed {
                        break;
                    }
                }
                Ok(Some(Err(failure))) => open.ending = Some(failed(&mut self.names, &failure)),
                Ok(None) => open.ending = Some("end".to_string()),
                Err(_) => break,
            }
        }
        let cancel = Value::message([("watch_id", Value::Int(id))]);
        let cancel = Value::message([("cancel_request", cancel)]).encode(input, &self.names)?;
        open.stream.send(cancel.into());
        Ok(())
    }

    async fn close(&mut self, client: usize, name: StreamName) {
        let key = (client, name);
        let Some(open) = self.streams.get_mut(&key) else {
            self.tell(client, name, "not open");
            return;
        };
        open.stream.half_close();
        open.closed = true;
        if name.kind == StreamKind::KeepAlive {
            while self.next_line(key, REPLY).await {}
        }
    }

    /// One message of a stream whose messages are compared one by one; false when there is none.
    async fn next_line(&mut self, key: (usize, StreamName), limit: Duration) -> bool {
        let Some(open) = self.streams.get_mut(&key) else {
            return false;
        };
        if open.over {
            return false;
        }
        let next = timeout(limit, open.stream.next()).await;
        let (line, more) = match next {
            Err(_) if limit < REPLY => return false,
            Err(_) => ("silent".to_string(), false),
            Ok(None) => ("end".to_string(), false),
            Ok(Some(Err(failure))) => (failed(&mut self.names, &failure), false),
            Ok(Some(Ok(message))) => {
                let output = method(key.1.kind.path()).map(|method| method.output());
                (format!("reply {}", self.show(output, message)), true)
            }
        };
        if let Some(open) = self.streams.get_mut(&key) {
            open.over = !more && line != "silent";
        }
        self.tell(key.0, key.1, line);
        more
    }

    /// Gives time to what waits for others.
    async fn settle(&mut self) -> Result<()> {
        let observers: Vec<_> = self
            .streams
            .iter()
            .filter(|((_, name), open)| name.kind == StreamKind::Observe && !open.over)
            .map(|(key, _)| *key)
            .collect();
        if self.waiting.is_empty() && observers.is_empty() {
            return Ok(());
        }
        sleep(SETTLE).await;
        let mut still = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            if waiting.task.is_finished() {
                let reply = waiting.task.await?;
                let text = self.reply(&waiting.method, waiting.operation.mark, reply);
                self.tell(waiting.client, waiting.operation, format!("late {text}"));
            } else {
                still.push(waiting);
            }
        }
        self.waiting = still;
        for key in observers {
            while self.next_line(key, Duration::from_millis(1)).await {}
        }
        Ok(())
    }

    /// Reads every watch stream up to now.
    async fn barrier(&mut self) -> Result<()> {
        let streams: Vec<_> = self
            .streams
            .iter()
            .filter(|((_, name), _)| name.kind == StreamKind::Watch)
            .map(|(key, _)| *key)
            .collect();
        if streams.is_empty() {
            return Ok(());
        }
        self.write_sentinel().await?;
        let output = method(StreamKind::Watch.path())
            .context("streams are etcd's")?
            .output();
        for key in streams {
            let Some(open) = self.streams.get_mut(&key) else {
                continue;
            };
            if open.over {
                continue;
            }
            let deadline = tokio::time::Instant::now() + REPLY;
            let mut messages = std::mem::take(&mut open.early);
            let mut ending = open.ending.take();
            while ending.is_none() {
                match timeout_at(deadline, open.stream.next()).await {
                    Err(_) => ending = Some("silent".to_string()),
                    Ok(None) => ending = Some("end".to_string()),
                    Ok(Some(Err(failure))) => ending = Some(failed(&mut self.names, &failure)),
                    Ok(Some(Ok(message))) => {
                        let message = DynamicMessage::decode(output.clone(), message)?;
                        let last = is_sentinel(&message, self.sentinels);
                        messages.push(message);
                        if last {
                            break;
                        }
                    }
                }
            }
            open.over = ending.is_some();
            let sentinel = fill_in(self.sentinel.as_bytes(), &self.names)?;
            for (message, what) in arrange(messages, &sentinel) {
                let elapsed = self.started.elapsed();
                let shown = self.names.show(&message, elapsed);
                self.tell(key.0, key.1, format!("{what} {shown}"));
            }
            if let Some(ending) = ending {
                self.tell(key.0, key.1, ending);
            }
        }
        Ok(())
    }

    async fn write_sentinel(&mut self) -> Result<i64> {
        self.sentinels += 1;
        let put = Value::message([
            ("key", Value::text(self.sentinel.as_str())),
            ("value", Value::text(self.sentinels.to_string())),
        ]);
        let reply = self.own("KV/Put", &put).await?;
        let header = reply.get_field_by_name("header");
        match header.as_deref() {
            Some(Wire::Message(header)) => Ok(int(header, "revision")),
            _ => bail!("a put is answered without a header"),
        }
    }

    /// A request of the runner's own, which has to succeed.
    async fn own(&self, name: &str, request: &Value) -> Result<DynamicMessage> {
        let path = path(name);
        let descriptor = method(&path).with_context(|| format!("no method {path}"))?;
        let message = request.encode(&descriptor.input(), &self.names)?;
        let token = self.tokens.get(&0);
        let metadata: Vec<_> = token
            .map(|token| ("token", token.as_str()))
            .into_iter()
            .collect();
        let message = Bytes::from(message);
        let ask = async |metadata: &[(&str, &str)]| {
            let call = self.own.unary(&path, metadata, message.clone());
            timeout(REPLY, call)
                .await
                .with_context(|| format!("{name} is not answered"))
        };
        let mut reply = ask(&metadata).await?;
        // etcd 3.4 refuses a void token while authentication is off, too.
        if matches!(&reply, Err(failure) if failure.code == Code::Unauthenticated) {
            reply = ask(&[]).await?;
        }
        let reply = reply.map_err(|failure| anyhow!("{name}: {failure:?}"))?;
        Ok(DynamicMessage::decode(descriptor.output(), reply)?)
    }

    async fn end_users(&mut self) -> Result<()> {
        self.own("Auth/AuthDisable", &Value::message([])).await?;
        for (list, field, delete, name) in [
            ("Auth/UserList", "users", "Auth/UserDelete", "name"),
            ("Auth/RoleList", "roles", "Auth/RoleDelete", "role"),
        ] {
            let all = self.own(list, &Value::message([])).await?;
            let Some(Wire::List(all)) = all.get_field_by_name(field).as_deref().cloned() else {
                continue;
            };
            for one in &all {
                let Wire::String(one) = one else { continue };
                let request = Value::message([(name, Value::text(one.as_str()))]);
                self.own(delete, &request).await?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, client: usize, request: impl ToString, text: impl Into<String>) {
        self.seen.push(Seen {
            step: self.step,
            client,
            request: request.to_string(),
            text: text.into(),
        });
    }

    fn client(&self, number: usize) -> Result<Client> {
        let client = self.clients.get(number);
        Ok(client.context("a client for each number")?.clone())
    }

    fn reply(&mut self, name: &str, mark: u32, reply: Result<Bytes, Failure>) -> String {
        let message = match reply {
            Ok(message) => message,
            Err(failure) => return failed(&mut self.names, &failure),
        };
        let Some(output) = method(&path(name)).map(|method| method.output()) else {
            return format!("ok, {} bytes", message.len());
        };
        match DynamicMessage::decode(output, message) {
            Ok(message) => {
                let part = if name == "Election/Campaign" {
                    ("leader", "rev")
                } else {
                    ("header", "revision")
                };
                if let Some(Wire::Message(inner)) = message.get_field_by_name(part.0).as_deref() {
                    self.names.note(mark, int(inner, part.1));
                }
                let shown = self.names.show(&message, self.started.elapsed());
                format!("ok {shown}").trim_end().to_string()
            }
            Err(error) => format!("undecodable reply: {error}"),
        }
    }

    fn show(&mut self, output: Option<MessageDescriptor>, message: Bytes) -> String {
        match output.map(|output| DynamicMessage::decode(output, message)) {
            Some(Ok(message)) => self.names.show(&message, self.started.elapsed()),
            Some(Err(error)) => format!("undecodable: {error}"),
            None => "unknown".to_string(),
        }
    }

    /// Leaves nothing behind that the next run could see. Leases go first: a lock that waits then ends by
    /// itself, whereas a cancelled one would delete its key some time later.
    async fn end(mut self) -> Result<()> {
        if self.has_users {
            self.end_users().await?;
        }
        let leases = self.own("Lease/LeaseLeases", &Value::message([])).await?;
        if let Some(Wire::List(leases)) = leases.get_field_by_name("leases").as_deref() {
            for lease in leases {
                let Wire::Message(lease) = lease else {
                    continue;
                };
                let revoke = Value::message([("ID", Value::Int(int(lease, "ID")))]);
                // It may expire in between.
                let _ = self.own("Lease/LeaseRevoke", &revoke).await;
            }
        }
        // In three parts: what lies below a root among registrations may be of another store than what is beside it.
        for (key, end) in [("$", &b"$/"[..]), ("$/", b"$0"), ("$0", b"$\xff")] {
            let delete =
                Value::message([("key", Value::text(key)), ("range_end", Value::text(end))]);
            self.own("KV/DeleteRange", &delete).await?;
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let abort = waiting.task.abort_handle();
            if timeout(Duration::from_secs(2), waiting.task).await.is_err() {
                abort.abort();
            }
        }
        Ok(())
    }
}

fn failed(names: &mut Names, failure: &Failure) -> String {
    let code: Code = failure.code;
    format!("{code:?}: {}", names.text(&failure.message))
        .trim_end()
        .to_string()
}

fn events(message: &DynamicMessage) -> Vec<Wire> {
    match message.get_field_by_name("events").as_deref() {
        Some(Wire::List(events)) => events.clone(),
        _ => Vec::new(),
    }
}

fn pair(event: &Wire) -> Option<DynamicMessage> {
    let Wire::Message(event) = event else {
        return None;
    };
    match event.get_field_by_name("kv").as_deref() {
        Some(Wire::Message(pair)) => Some(pair.clone()),
        _ => None,
    }
}

fn has_bytes(pair: &DynamicMessage, field: &str, bytes: &[u8]) -> bool {
    matches!(pair.get_field_by_name(field).as_deref(), Some(Wire::Bytes(found)) if found == bytes)
}

fn is_sentinel(message: &DynamicMessage, number: u64) -> bool {
    int(message, "watch_id") == HIDDEN
        && events(message)
            .iter()
            .filter_map(pair)
            .any(|pair| has_bytes(&pair, "value", number.to_string().as_bytes()))
}

fn flag(message: &DynamicMessage, field: &str) -> bool {
    matches!(
        message.get_field_by_name(field).as_deref(),
        Some(Wire::Bool(true))
    )
}

/// Brings the messages of a stream into the order that a client may rely on: first what answers creates, in
/// the order of the requests; then each watcher's own sequence; then progress. Between watchers etcd promises
/// no order. Consecutive events of one watcher count as one message however they were cut between revisions;
/// a cut inside a revision that is not marked as a fragment is told. How large a fragment is, is the server's
/// choice.
pub(super) fn arrange(
    messages: Vec<DynamicMessage>,
    sentinel: &[u8],
) -> Vec<(DynamicMessage, &'static str)> {
    let mut created = Vec::new();
    let mut progress = Vec::new();
    let mut watchers: BTreeMap<i64, Vec<Part>> = BTreeMap::new();
    for message in messages {
        let id = int(&message, "watch_id");
        if id >= HIDDEN {
            continue;
        }
        let all = events(&message);
        let kept: Vec<Wire> = all
            .iter()
            .filter(|event| !pair(event).is_some_and(|pair| has_bytes(&pair, "key", sentinel)))
            .cloned()
            .collect();
        if flag(&message, "created") {
            created.push((message, "created"));
        } else if flag(&message, "canceled") {
            watchers.entry(id).or_default().push(Part::Other(message));
        } else if all.is_empty() {
            progress.push((message, "progress"));
        } else if !kept.is_empty() {
            let parts = watchers.entry(id).or_default();
            match parts.last_mut() {
                Some(Part::Events(batch)) => batch.append(message, kept),
                _ => {
                    let mut batch = Batch::default();
                    batch.append(message, kept);
                    parts.push(Part::Events(batch));
                }
            }
        }
    }
    let watchers = watchers
        .into_values()
        .flatten()
        .filter_map(|part| match part {
            Part::Other(message) => Some((message, "canceled")),
            Part::Events(batch) => batch.into_message(),
        });
    created
        .into_iter()
        .chain(watchers)
        .chain(progress)
        .collect()
}

enum Part {
    Events(Batch),
    Other(DynamicMessage),
}

#[derive(Default)]
struct Batch {
    last: Option<DynamicMessage>,
    events: Vec<Wire>,
    fragment: bool,
    cut: bool,
}

impl Batch {
    fn append(&mut self, message: DynamicMessage, events: Vec<Wire>) {
        let revision =
            |event: Option<&Wire>| event.and_then(pair).map(|pair| int(&pair, "mod_revision"));
        let before = revision(self.events.last());
        if !self.fragment && before.is_some() && before == revision(events.first()) {
            self.cut = true;
        }
        self.fragment = flag(&message, "fragment");
        self.events.extend(events);
        self.last = Some(message);
    }

    fn into_message(self) -> Option<(DynamicMessage, &'static str)> {
        let mut message = self.last?;
        message.set_field_by_name("events", Wire::List(self.events));
        let what = if self.cut {
            "events cut inside a revision"
        } else {
            "events"
        };
        Some((message, what))
    }
}
