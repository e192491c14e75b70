//! What both clients share: reporting of steps, faults asked of the bench, exact checks, waits with a limit.

use std::fmt::Debug;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::time::{Instant, sleep, timeout};

/// Where a scenario plays.
pub(crate) struct Place {
    /// The target.
    pub(crate) address: String,
    /// Fresh for this run.
    pub(crate) prefix: String,
    /// The target over a link that the bench can cut; empty without one.
    pub(crate) link: String,
}

static CURRENT: Mutex<String> = Mutex::new(String::new());

/// One line of the report.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Ends the program when it is not through after so many seconds; a panic is a failure of its step too.
pub(crate) fn limit(seconds: u64) {
    std::panic::set_hook(Box::new(|panic| fail(&panic.to_string())));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds));
        fail(&format!("not through within {seconds} s"));
    });
}

fn fail(reason: &str) -> ! {
    let step = CURRENT.lock().map(|step| step.clone()).unwrap_or_default();
    let line: Vec<&str> = reason.split_whitespace().collect();
    say(&format!(
        "fail {} {}",
        if step.is_empty() { "start" } else { &step },
        line.join(" ")
    ));
    std::process::exit(1)
}

/// Checks one step of the scenario and reports it; nothing after a wrong state is worth seeing.
pub(crate) async fn step<T>(name: &str, check: impl Future<Output = Result<T>>) -> T {
    if let Ok(mut current) = CURRENT.lock() {
        name.clone_into(&mut current);
    }
    match check.await {
        Ok(value) => {
            say(&format!("ok {name}"));
            value
        }
        Err(error) => fail(&format!("{error:#}")),
    }
}

/// What the library has no call for.
pub(crate) fn lacks(name: &str, reason: &str) {
    say(&format!("lacks {name} {reason}"));
}

/// Anything worth keeping.
pub(crate) fn note(text: &str) {
    say(&format!("note {text}"));
}

/// Asks the bench for a fault and waits until it is done.
pub(crate) async fn fault(verb: &str) -> Result<()> {
    say(&format!("do {verb}"));
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    })
    .await??;
    ensure!(
        answer.trim() == "done",
        "the bench answered {answer:?} to {verb}"
    );
    Ok(())
}

/// An exact check.
pub(crate) fn equal<T: PartialEq + Debug>(seen: &T, expected: &T, what: &str) -> Result<()> {
    ensure!(
        seen == expected,
        "{what}: expected {}, saw {}",
        short(expected),
        short(seen)
    );
    Ok(())
}

fn short(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    if text.chars().count() > 400 {
        text.chars().take(400).collect::<String>() + " …"
    } else {
        text
    }
}

/// The answer, unless it takes longer.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    answer: impl Future<Output = T>,
) -> Result<T> {
    timeout(limit, answer)
        .await
        .with_context(|| format!("{what}: not within {limit:?}"))
}

/// Asks again until the answer is the expected one.
pub(crate) async fn until<T: PartialEq + Debug>(
    limit: Duration,
    what: &str,
    expected: &T,
    mut ask: impl AsyncFnMut() -> Result<T>,
) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let seen = ask().await?;
        if seen == *expected {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{what}: expected {expected:?} within {limit:?}, last saw {seen:?}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Seconds.
pub(crate) const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Milliseconds.
pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
