//! Records a client's run, replays transcripts, and writes the list of known call patterns.
//!
//! ```text
//! causeway-transcripts record SUBJECT UPSTREAM SERVER CLIENT SCENARIO PREFIX PROGRAM...
//!     CLIENT is name and version ("kazoo 2.10.0"); PROGRAM gets SCENARIO, the recorder's address and PREFIX
//! causeway-transcripts replay ADDRESS FILE...
//! causeway-transcripts patterns
//!     writes the transcripts again too, in their present form
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "drives real processes in real time"
)]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use causeway_compat_tests::clients::Program;
use causeway_compat_tests::link::Link;
use causeway_compat_tests::process::Work;
use causeway_compat_tests::record::{
    self, Recorder, Run, Subject, folder, patterns as known, transcripts,
};

const RUN: Duration = Duration::from_secs(60);

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [
            "record",
            subject,
            upstream,
            server,
            client,
            scenario,
            prefix,
            program @ ..,
        ] => {
            let run = Run {
                client: (*client).to_string(),
                scenario: (*scenario).to_string(),
                server: (*server).to_string(),
                prefix: (*prefix).to_string(),
            };
            record(Subject::parse(subject)?, upstream, run, program)?;
            Ok(ExitCode::SUCCESS)
        }
        ["replay", address, files @ ..] => replay(address, files),
        ["patterns"] => {
            let all = transcripts(&folder())?;
            for (path, transcript) in &all {
                transcript.write(path)?;
            }
            let list = known::collect(all.iter().map(|(_, transcript)| transcript));
            std::fs::write(folder().join("patterns.txt"), known::print(&list))?;
            println!("{} patterns of {} transcripts", list.len(), all.len());
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("record, replay or patterns: see the head of this file"),
    }
}

/// Runs the program in front of a recorder, and keeps the transcript if it passes.
fn record(subject: Subject, upstream: &str, run: Run, program: &[&str]) -> Result<()> {
    let work = Work::new("record")?;
    let recorder = Recorder::start(subject, upstream)?;
    // The link lies between client and recorder: what it swallows was never said to the server.
    let address = recorder.address();
    let link = Link::start(&address)?;
    let (name, rest) = program.split_first().context("no program")?;
    let mut command = Command::new(name);
    command
        .args(rest)
        .args([&run.scenario, &address, &run.prefix])
        .env("COMPAT_LINK", link.address());
    let mut program = Program::spawn(&work, "client", &mut command)?;
    let end = Instant::now() + RUN;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let line = program.expect_that(left, "the next line", |line| Some(line.to_string()))?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("do", "cut") => link.cut()?,
            ("do", "mend") => link.mend()?,
            ("do", verb) => bail!("{verb} is not made here"),
            ("fail", why) => bail!("the client fails: {why}"),
            ("done", _) => break,
            _ => continue,
        }
        program.say("done")?;
    }
    program.finish(Duration::from_secs(15))?;
    let transcript = recorder.finish(run);
    let path = folder().join(transcript.file_name());
    transcript.write(&path)?;
    println!("{} lines in {}", transcript.entries.len(), path.display());
    Ok(())
}

fn replay(address: &str, files: &[&str]) -> Result<ExitCode> {
    let mut clean = true;
    for file in files {
        let start = Instant::now();
        let report = match record::replay(Path::new(file), address) {
            Ok(report) => report,
            Err(error) => {
                println!("{file}: {error:#}");
                clean = false;
                continue;
            }
        };
        println!(
            "{file}: {} sent, {} compared, {} differences, {} s{}",
            report.sent,
            report.compared,
            report.differences.len(),
            start.elapsed().as_secs(),
            report
                .stopped
                .as_ref()
                .map(|why| format!(", stopped: {why}"))
                .unwrap_or_default()
        );
        for difference in &report.differences {
            println!("    {difference}");
        }
        clean &= report.differences.is_empty() && report.stopped.is_none();
    }
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
