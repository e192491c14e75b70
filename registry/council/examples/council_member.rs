//! One member of a council over plain TCP, with a port that takes a line and answers a line.
//!
//! ```text
//! council_member --dir a --id 1 --listen 127.0.0.1:7001 --ask 127.0.0.1:7101 --init
//! council_member --dir b --id 2 --listen 127.0.0.1:7002 --ask 127.0.0.1:7102 --join 1=127.0.0.1:7001
//! printf 'next orders\n' | nc 127.0.0.1 7102
//! ```
//!
//! Lines: `next NAME`, `cas KEY EXPECTED NEW` (`-` is nothing), `get KEY`, `local KEY`, `forget ID`, `status`.
//! Answers begin with `ok`, `no` (compare-and-set that found something else), `retry` (surely nothing was
//! changed) or `unknown`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use causeway_registry_council::tcp::Tcp;
use causeway_registry_council::{
    Council, CouncilError, RegisterCommand, RegisterReply, Registers, Settings, Store,
};
use clap::Parser;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A member of a council that keeps counters and values.
#[derive(Parser)]
struct Flags {
    /// Its data folder.
    #[arg(long)]
    dir: PathBuf,
    /// Its number.
    #[arg(long)]
    id: u64,
    /// Where other members reach it.
    #[arg(long)]
    listen: String,
    /// Where it is asked.
    #[arg(long)]
    ask: String,
    /// Begin a cluster.
    #[arg(long)]
    init: bool,
    /// Join the cluster of a member, ID=ADDRESS.
    #[arg(long)]
    join: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let store = Store::open(&flags.dir, flags.id, rand::random())?;
    let links = Tcp::new(flags.id, flags.listen.clone());
    let listener = TcpListener::bind(&flags.listen).await?;
    let settings = Settings {
        address: flags.listen.clone(),
        ..Settings::default()
    };
    let council = Council::start(store, Registers::default(), links.clone(), settings).await?;
    let receiver = council.clone();
    tokio::spawn(links.serve(
        listener,
        Arc::new(move |from, frame| receiver.deliver(from, &frame)),
    ));
    if flags.init {
        council.init(rand::random()).await?;
    }
    if let Some(join) = &flags.join {
        let (id, address) = join.split_once('=').context("--join takes ID=ADDRESS")?;
        council
            .join(id.parse()?, address, Duration::from_secs(60))
            .await?;
    }
    let asked = TcpListener::bind(&flags.ask).await?;
    println!("ready");
    loop {
        let (stream, _) = asked.accept().await?;
        let council = council.clone();
        tokio::spawn(async move {
            // The asker went away.
            let _ = serve(stream, council).await;
        });
    }
}

async fn serve(stream: TcpStream, council: Council<Registers>) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let mut answer = answer(&council, &line).await;
        answer.push('\n');
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

async fn answer(council: &Council<Registers>, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |v: &str| (v != "-").then(|| bytes::Bytes::copy_from_slice(v.as_bytes()));
    let shown = |key: &str| {
        council.read(|r| match r.get(key.as_bytes()) {
            Some(value) => format!("ok {}", String::from_utf8_lossy(value)),
            None => "ok -".into(),
        })
    };
    let command = match words.as_slice() {
        ["next", name] => RegisterCommand::Next {
            name: (*name).into(),
        },
        ["cas", key, expected, new] => RegisterCommand::CompareAndSet {
            key: bytes::Bytes::copy_from_slice(key.as_bytes()),
            expected: value(expected),
            new: value(new),
        },
        ["get", key] => {
            return match council.read_index().await {
                Ok(()) => shown(key),
                Err(reason) => format!("retry {reason}"),
            };
        }
        ["local", key] => return shown(key),
        ["forget", id] => {
            let Ok(id) = id.parse() else {
                return "retry no number".into();
            };
            return match council.forget(id).await {
                Ok(()) => "ok".into(),
                Err(e) => failed(&e),
            };
        }
        ["status"] => return format!("ok {:?}", council.status()),
        _ => return "retry not understood".into(),
    };
    match council.propose(&command).await {
        Ok(RegisterReply::Number(number)) => format!("ok {number}"),
        Ok(RegisterReply::Set) => "ok".into(),
        Ok(RegisterReply::Differs(None)) => "no -".into(),
        Ok(RegisterReply::Differs(Some(v))) => format!("no {}", String::from_utf8_lossy(&v)),
        Ok(RegisterReply::Exhausted) => "retry no number is left".into(),
        Err(e) => failed(&e),
    }
}

fn failed(error: &CouncilError) -> String {
    match error {
        CouncilError::NotApplied(reason) => format!("retry {reason}"),
        CouncilError::Unknown => "unknown".into(),
    }
}
