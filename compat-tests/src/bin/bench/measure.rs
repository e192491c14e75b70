//! What a server's process used, and rounds taken in turn.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// A server under measurement.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its name in the report.
    pub name: &'static str,
    /// Its processes: the server's own, and those that it leaves work to.
    pub pids: Vec<u32>,
    /// `host:port`.
    pub address: String,
}

/// What one server did in one round.
#[derive(Debug, Default)]
pub struct Sample {
    cpu: Duration,
    elapsed: Duration,
    operations: usize,
    /// Of each operation.
    latencies: Vec<Duration>,
    /// From each change to the last of its watchers.
    pub last: Vec<Duration>,
}

/// A span of time on one server.
pub struct Span<'s> {
    server: &'s Server,
    begun: Instant,
    cpu: Duration,
}

impl<'s> Span<'s> {
    /// Begins now.
    pub fn begin(server: &'s Server) -> Result<Span<'s>> {
        Ok(Span {
            server,
            begun: Instant::now(),
            cpu: cpu(&server.pids)?,
        })
    }

    /// Ends now.
    pub fn end(self, latencies: Vec<Duration>) -> Result<Sample> {
        Ok(Sample {
            elapsed: self.begun.elapsed(),
            cpu: cpu(&self.server.pids)?.saturating_sub(self.cpu),
            operations: latencies.len(),
            latencies,
            last: Vec::new(),
        })
    }
}

/// The figures of one server for one kind of work: medians over the rounds.
#[derive(Debug)]
pub struct Figures {
    /// Its name.
    pub server: &'static str,
    /// Microseconds of CPU time for one operation.
    pub cpu: f64,
    /// Operations in a second.
    pub rate: f64,
    /// Microseconds until an operation is answered: half of them.
    pub p50: f64,
    /// The same for 99 of 100.
    pub p99: f64,
    /// Microseconds until the last of a change's watchers has its event, where there are such.
    pub last: Option<f64>,
}

impl Figures {
    /// Sums rounds up.
    pub fn of(server: &Server, samples: &[Sample]) -> Figures {
        let each = |figure: &dyn Fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
        let last: Vec<f64> = samples
            .iter()
            .flat_map(|sample| sample.last.iter().map(micros))
            .collect();
        Figures {
            server: server.name,
            cpu: each(&|s| micros(&s.cpu) / s.operations.max(1) as f64),
            rate: each(&|s| s.operations as f64 / s.elapsed.as_secs_f64()),
            p50: each(&|s| percentile(&s.latencies, 50)),
            p99: each(&|s| percentile(&s.latencies, 99)),
            last: (!last.is_empty()).then(|| median(last)),
        }
    }
}

/// Sets each server up, and has it do a round in its turn, so that a busy moment of the machine hits all alike. The
/// first rounds warm up and are not counted.
pub async fn in_turn<S>(
    servers: &[&Server],
    rounds: Rounds,
    set_up: impl AsyncFn(&Server) -> Result<S>,
    round: impl AsyncFn(&Server, &mut S) -> Result<Sample>,
) -> Result<Vec<Figures>> {
    let mut states = Vec::new();
    for server in servers {
        let state = set_up(server).await;
        states.push(state.with_context(|| format!("set up {}", server.name))?);
    }
    let mut samples: Vec<Vec<Sample>> = servers.iter().map(|_| Vec::new()).collect();
    for number in 0..rounds.warm_up + rounds.counted {
        for ((server, state), samples) in servers.iter().zip(&mut states).zip(&mut samples) {
            let sample = round(server, state).await;
            let sample = sample.with_context(|| format!("a round of {}", server.name))?;
            if number >= rounds.warm_up {
                samples.push(sample);
            }
        }
    }
    Ok(servers
        .iter()
        .zip(&samples)
        .map(|(server, samples)| Figures::of(server, samples))
        .collect())
}

/// How many rounds.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// That are not counted.
    pub warm_up: usize,
    /// That are.
    pub counted: usize,
}

/// User and system time of some processes so far.
pub fn cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| cpu_of(*pid)).sum()
}

fn cpu_of(pid: u32) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold blanks; utime and stime are fields 14 and 15, in hundredths of a second.
    let (_, rest) = text.rsplit_once(')').context("stat")?;
    let ticks: Vec<u64> = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    ensure!(ticks.len() == 2, "stat: {text}");
    Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
}

/// Resident memory of processes in KB.
pub fn resident_kb(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| resident_kb_of(*pid)).sum()
}

fn resident_kb_of(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .context("no VmRSS")
}

/// Microseconds.
pub fn micros(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The middle one.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn percentile(latencies: &[Duration], percent: usize) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort();
    let at = sorted.len() * percent / 100;
    sorted.get(at).or(sorted.last()).map_or(0.0, micros)
}
