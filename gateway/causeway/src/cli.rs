//! The operator's commands: each is one call to the admin API, shown as a table or as JSON.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

/// `println!` that ends the process quietly when nobody reads any more (`causeway status | head`).
macro_rules! say {
    ($($text:tt)*) => {
        crate::cli::print_line(&format!($($text)*))
    };
}

/// Exit code when the gateway refused (a gate, a wrong phase); 1 is a failure to ask it.
const REFUSED: u8 = 2;

/// Commands that talk to a running gateway.
#[derive(Debug, Subcommand)]
pub enum Operator {
    /// Phase, stores, gates and protection at a glance.
    Status(Target),
    /// Services with their instances, and what no layout claims.
    Services(Target),
    /// Where an instance comes from, who keeps it alive, and why it is visible or not.
    Explain {
        /// host:port, raw key or part of either.
        instance: String,
        #[command(flatten)]
        target: Target,
    },
    /// What the next step would change, and every gate's value.
    Plan(Target),
    /// Make sessions, leases and numbers Causeway's own (one-way).
    TakeOver(Step),
    /// One phase forward.
    Advance(Step),
    /// One phase back.
    Rollback(Step),
    /// Accept the present size of a protected service as its expected size.
    Ack {
        /// Service, as `causeway services` names it.
        service: String,
        /// Why; written to the audit.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        target: Target,
    },
    /// Stop even explicit removals for a while.
    Hold {
        /// Removals by their owners too.
        #[arg(long)]
        explicit: bool,
        /// How long, in seconds.
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Why; written to the audit.
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        target: Target,
    },
    /// Steps taken, with actor, reason and gates passed by force, and the latest orders to protection.
    Audit(Target),
}

/// Which gateway, and how to show its answer.
#[derive(Debug, Args)]
pub struct Target {
    /// Admin API of the gateway.
    #[arg(long, env = "CAUSEWAY_ADMIN", default_value = "http://127.0.0.1:8500")]
    admin: String,
    /// Token of the admin API.
    #[arg(long, env = "CAUSEWAY_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

/// A phase step.
#[derive(Debug, Args)]
pub struct Step {
    /// Pass gates that are not met; needs --reason and is audited.
    #[arg(long)]
    force: bool,
    /// Why; written to the audit.
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    target: Target,
}

/// Runs one command.
pub fn run(command: Operator) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Operator::Status(t) => t.get("/v1/status", &[], show_status).await,
            Operator::Services(t) => t.get("/v1/services", &[], show_services).await,
            Operator::Explain { instance, target } => {
                target.get("/v1/explain", &[("instance", instance.as_str())], show_explain).await
            }
            Operator::Plan(t) => t.get("/v1/plan", &[], show_plan).await,
            Operator::Audit(t) => t.get("/v1/audit", &[], show_audit).await,
            Operator::TakeOver(s) => s.post("take-over").await,
            Operator::Advance(s) => s.post("advance").await,
            Operator::Rollback(s) => s.post("rollback").await,
            Operator::Ack { service, reason, target } => {
                target.post("/v1/ack", json!({"service": service, "reason": reason, "actor": actor()}), show_plain).await
            }
            Operator::Hold { explicit, seconds, reason, target } => {
                if !explicit {
                    bail!("only `causeway hold --explicit` exists: other removals are held by protection itself");
                }
                let body = json!({"seconds": seconds, "reason": reason, "actor": actor()});
                target.post("/v1/hold", body, show_plain).await
            }
        }
    })
}

fn actor() -> String {
    std::env::var("USER")
        .or_else(|_| std::env::var("LOGNAME"))
        .unwrap_or_else(|_| "unknown".into())
}

impl Step {
    async fn post(self, kind: &str) -> anyhow::Result<ExitCode> {
        let body = json!({"force": self.force, "reason": self.reason, "actor": actor()});
        self.target
            .post(&format!("/v1/phase/{kind}"), body, show_step)
            .await
    }
}

impl Target {
    async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        show: fn(&Value),
    ) -> anyhow::Result<ExitCode> {
        self.send(
            reqwest::Client::new().get(self.url(path)).query(query),
            show,
        )
        .await
    }

    async fn post(&self, path: &str, body: Value, show: fn(&Value)) -> anyhow::Result<ExitCode> {
        self.send(
            reqwest::Client::new().post(self.url(path)).json(&body),
            show,
        )
        .await
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.admin.trim_end_matches('/'))
    }

    async fn send(
        &self,
        request: reqwest::RequestBuilder,
        show: fn(&Value),
    ) -> anyhow::Result<ExitCode> {
        let request = request.timeout(std::time::Duration::from_secs(60));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let reply = request.send().await.with_context(|| {
            format!(
                "no gateway answers at {} (set --admin or CAUSEWAY_ADMIN)",
                self.admin
            )
        })?;
        let status = reply.status();
        let text = reply
            .text()
            .await
            .context("the gateway's answer broke off")?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if status.is_success() {
            if self.json {
                say!("{}", serde_json::to_string_pretty(&value)?);
            } else {
                show(&value);
            }
            return Ok(ExitCode::SUCCESS);
        }
        if self.json {
            say!("{}", serde_json::to_string_pretty(&value)?);
        } else {
            let message = value
                .get("error")
                .and_then(Value::as_str)
                .unwrap_or("no reason given");
            eprintln!("refused ({status}): {message}");
            for failure in value
                .get("failures")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                eprintln!("  - {}", text_of(failure));
            }
        }
        Ok(if status.is_server_error() {
            ExitCode::FAILURE
        } else {
            ExitCode::from(REFUSED)
        })
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

fn field(value: &Value, name: &str) -> String {
    text_of(value.get(name).unwrap_or(&Value::Null))
}

fn rows<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Prints rows under headings, each column as wide as its widest cell.
fn table(headings: &[&str], cells: &[Vec<String>]) {
    let widths: Vec<usize> = (0..headings.len())
        .map(|i| {
            let widest = cells
                .iter()
                .filter_map(|r| r.get(i))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0);
            widest.max(headings[i].len())
        })
        .collect();
    let line = |row: Vec<&str>| {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(c, w)| format!("{c:<w$}"))
            .collect();
        say!("{}", padded.join("  ").trim_end());
    };
    line(headings.to_vec());
    for row in cells {
        line(row.iter().map(String::as_str).collect());
    }
}

fn columns(items: &[Value], names: &[&str]) -> Vec<Vec<String>> {
    items
        .iter()
        .map(|item| names.iter().map(|n| field(item, n)).collect())
        .collect()
}

fn show_status(value: &Value) {
    say!(
        "phase {}  epoch {}  attempt {}  take-over {}",
        field(value, "phase"),
        field(value, "epoch"),
        field(value, "attempt"),
        if value.get("taken_over") == Some(&Value::Bool(true)) {
            "done"
        } else {
            "not yet"
        },
    );
    say!(
        "{} services, {} instances, {} held; {} sessions, {} leases",
        field(value, "services"),
        field(value, "instances"),
        field(value, "held"),
        field(value, "sessions"),
        field(value, "leases"),
    );
    table(
        &["STORE", "ROLE", "STATE", "DETAIL"],
        &columns(rows(value, "stores"), &["store", "role", "state", "detail"]),
    );
    if let Some(next) = value.get("next").and_then(Value::as_str) {
        let failures = rows(value, "gate_failures");
        say!(
            "next step: {next} ({})",
            if failures.is_empty() {
                "gates pass"
            } else {
                "gates not met"
            }
        );
        for failure in failures {
            say!("  - {}", text_of(failure));
        }
    }
    for service in rows(value, "protected") {
        say!("PROTECTED {}", text_of(service));
    }
}

fn show_services(value: &Value) {
    let names = [
        "layout",
        "service",
        "instances",
        "live",
        "silent",
        "held",
        "expected",
        "protected",
    ];
    table(
        &[
            "LAYOUT",
            "SERVICE",
            "INSTANCES",
            "LIVE",
            "SILENT",
            "HELD",
            "EXPECTED",
            "PROTECTED",
        ],
        &columns(rows(value, "services"), &names),
    );
    let unclaimed = rows(value, "unclaimed");
    if !unclaimed.is_empty() {
        say!("\nNo layout claims these ephemerals and leased keys:");
        table(
            &["STORE", "KEY", "OWNER", "WOULD FIT"],
            &columns(unclaimed, &["store", "key", "owner", "would_fit"]),
        );
    }
}

fn show_explain(value: &Value) {
    let found = rows(value, "registrations");
    if found.is_empty() {
        say!("no registration matches");
    }
    for item in found {
        for (name, value) in item.as_object().into_iter().flatten() {
            say!("{name:<14} {}", text_of(value));
        }
        say!("");
    }
}

fn show_plan(value: &Value) {
    say!("step: {} -> {}", field(value, "from"), field(value, "to"));
    for change in rows(value, "changes") {
        say!("  change: {}", text_of(change));
    }
    if rows(value, "changes").is_empty() {
        say!("  no client sees a change");
    }
    for failure in rows(value, "failures") {
        say!("  gate: {}", text_of(failure));
    }
}

fn show_audit(value: &Value) {
    table(
        &[
            "EPOCH", "AT_MS", "STEP", "FROM", "TO", "ACTOR", "REASON", "FORCED",
        ],
        &columns(
            rows(value, "steps"),
            &[
                "epoch", "at_ms", "kind", "from", "to", "actor", "reason", "forced",
            ],
        ),
    );
    let orders = rows(value, "orders");
    if !orders.is_empty() {
        say!("");
        table(
            &["AT_MS", "ORDER", "SERVICE", "NOTE"],
            &columns(orders, &["at_ms", "kind", "service", "note"]),
        );
    }
}

fn show_step(value: &Value) {
    say!(
        "{}: {} -> {} (epoch {})",
        field(value, "kind"),
        field(value, "from"),
        field(value, "to"),
        field(value, "epoch")
    );
    for failure in rows(value, "forced") {
        say!("  passed by force: {}", text_of(failure));
    }
}

fn show_plain(value: &Value) {
    say!("{}", field(value, "message"));
}

fn print_line(text: &str) {
    use std::io::Write as _;
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
