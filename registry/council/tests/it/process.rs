//! Real processes over TCP, killed with SIGKILL one after the other and all at once.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::history::{Answer, Call, Operation, check_counter, check_linearizable};

const READY: Duration = Duration::from_secs(60);

struct Member {
    id: u64,
    folder: tempfile::TempDir,
    listen: String,
    ask: String,
    child: Option<Child>,
}

fn program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|deps| deps.parent());
    let program = folder
        .context("a target folder")?
        .join("examples/council_member");
    anyhow::ensure!(
        program.exists(),
        "{} is missing: `cargo build -p causeway-registry-council --examples`",
        program.display()
    );
    Ok(program)
}

fn free_address() -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}

impl Member {
    fn new(id: u64) -> Result<Self> {
        Ok(Member {
            id,
            folder: tempfile::tempdir()?,
            listen: free_address()?,
            ask: free_address()?,
            child: None,
        })
    }

    /// Starts the process and waits until it can be asked.
    async fn start(&mut self, arguments: &[&str]) -> Result<()> {
        let mut child = Command::new(program()?)
            .arg("--dir")
            .arg(self.folder.path())
            .args(["--id", &self.id.to_string()])
            .args(["--listen", &self.listen, "--ask", &self.ask])
            .args(arguments)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = child.stdout.take().context("its output")?;
        let mut lines = BufReader::new(out).lines();
        let line = tokio::time::timeout(READY, lines.next_line()).await??;
        anyhow::ensure!(
            line.as_deref() == Some("ready"),
            "member {}: {line:?}",
            self.id
        );
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL, as a crash.
    async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }
}

/// Asks one line; an error means that no answer came.
async fn ask(address: &str, line: &str) -> Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("{line}\n").as_bytes()).await?;
        let answer = BufReader::new(stream).lines().next_line().await?;
        answer.context("closed")
    };
    tokio::time::timeout(Duration::from_secs(15), asking).await?
}

/// Asks until it is answered with `ok`.
async fn ask_ok(address: &str, line: &str) -> Result<String> {
    let begin = Instant::now();
    loop {
        let answer = ask(address, line).await;
        if let Ok(answer) = &answer
            && let Some(answer) = answer.strip_prefix("ok")
        {
            return Ok(answer.trim().to_string());
        }
        if begin.elapsed() > READY {
            bail!("{line}: {answer:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[derive(Clone, Default)]
struct Seen {
    operations: Arc<Mutex<Vec<Operation>>>,
    taken: Arc<Mutex<Vec<(u64, u64, u64)>>>,
    stop: Arc<AtomicBool>,
}

async fn client(me: u64, addresses: Vec<String>, start: Instant, seen: Seen) {
    let now = || u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut unique = me * 1_000_000;
    let mut known: Option<u64> = None;
    let parse = |value: &str| value.trim().parse::<u64>().ok();
    for at in 0.. {
        if seen.stop.load(Ordering::Relaxed) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let address = &addresses[at % addresses.len()];
        let began = now();
        if at % 2 == 0 {
            if let Ok(answer) = ask(address, "next n").await
                && let Some(number) = answer.strip_prefix("ok").and_then(parse)
            {
                seen.taken.lock().push((began, now(), number));
            }
            continue;
        }
        unique += 1;
        let expected = known.map_or("-".into(), |v| v.to_string());
        let answer = ask(address, &format!("cas k {expected} {unique}")).await;
        let call = Call::CompareAndSet {
            expected: known,
            new: unique,
        };
        let answer = match answer.as_deref() {
            Ok("ok") => {
                known = Some(unique);
                Answer::Set(true)
            }
            Ok(other) if other.starts_with("no") => {
                known = other.strip_prefix("no").and_then(parse);
                Answer::Set(false)
            }
            Ok(other) if other.starts_with("retry") => continue,
            // Unknown, or the process died before it answered.
            Ok(_) | Err(_) => Answer::Unknown,
        };
        seen.operations.lock().push(Operation {
            key: 0,
            began,
            ended: now(),
            call,
            answer,
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_nothing_that_was_acknowledged() -> Result<()> {
    let mut members = [Member::new(1)?, Member::new(2)?, Member::new(3)?];
    members[0].start(&["--init"]).await?;
    let first = format!("1={}", members[0].listen);
    for member in &mut members[1..] {
        member.start(&["--join", &first]).await?;
    }
    let addresses: Vec<String> = members.iter().map(|m| m.ask.clone()).collect();
    ask_ok(&addresses[2], "next warm").await?;
    let seen = Seen::default();
    let start = Instant::now();
    let clients: Vec<_> = (1..=3)
        .map(|me| tokio::spawn(client(me, addresses.clone(), start, seen.clone())))
        .collect();
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        if round == 3 {
            for member in &mut members {
                member.kill().await?;
            }
            for member in &mut members {
                member.start(&[]).await?;
            }
        } else {
            let member = &mut members[round];
            member.kill().await?;
            // The other two decide alone.
            let other = &addresses[(round + 1) % 3];
            ask_ok(other, "next others").await?;
            member.start(&[]).await?;
        }
    }
    ask_ok(&addresses[0], "next last").await?;
    seen.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    let taken = seen.taken.lock().clone();
    let mut operations = seen.operations.lock().clone();
    println!(
        "{} numbers, {} compare-and-sets",
        taken.len(),
        operations.len()
    );
    assert!(taken.len() > 50, "too little happened: {}", taken.len());
    check_counter(&taken);
    let next: u64 = ask_ok(&addresses[1], "next n").await?.parse()?;
    assert!(
        taken.iter().all(|(_, _, n)| *n < next),
        "{next} was given out"
    );
    let last = ask_ok(&addresses[1], "get k").await?.parse().ok();
    let now = u64::try_from(start.elapsed().as_micros())?;
    operations.push(Operation {
        key: 0,
        began: now,
        ended: now + 1,
        call: Call::Read,
        answer: Answer::Value(last),
    });
    check_linearizable(&operations);
    for member in &mut members {
        member.kill().await?;
    }
    Ok(())
}
