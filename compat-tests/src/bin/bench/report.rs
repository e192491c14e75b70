//! The figures as a page.

use std::fmt::Write as _;

use crate::measure::Figures;

/// etcd's own proxy, which stands beside and has no bound to keep.
pub const PROXY: &str = "grpc-proxy";

/// The page as far as it is made.
#[derive(Debug, Default)]
pub struct Report {
    costs: String,
    extras: String,
    missed: Vec<String>,
}

impl Report {
    /// A kind of work: a line for each server, the first of which is the real one. `bound` is what part of its CPU
    /// time each other may use.
    pub fn costs(&mut self, work: &str, figures: &[Figures], bound: Option<f64>) {
        self.costs_and_lasts(work, figures, bound, 0.6);
    }

    /// The same for watches, the last of which has its event after `last` times what the real one takes at most.
    pub fn costs_and_lasts(
        &mut self,
        work: &str,
        figures: &[Figures],
        bound: Option<f64>,
        last: f64,
    ) {
        let real = figures.first().map_or(0.0, |f| f.cpu);
        for (at, f) in figures.iter().enumerate() {
            let ratio = f.cpu / real;
            let of_real = if at == 0 {
                "1".to_string()
            } else {
                format!("{ratio:.2}")
            };
            let bound = bound.filter(|_| f.server != PROXY);
            let verdict = self.verdict(&format!("{work}, {}: CPU", f.server), ratio, bound, at);
            let line = format!(
                "| {work} | {} | {:.1} | {of_real} | {verdict} | {:.0} | {:.0} | {:.0} |",
                f.server, f.cpu, f.rate, f.p50, f.p99
            );
            println!("{line}");
            let _ = writeln!(self.costs, "{line}");
        }
        self.lasts(work, figures, last);
    }

    fn lasts(&mut self, work: &str, figures: &[Figures], bound: f64) {
        let Some(real) = figures.first().and_then(|f| f.last) else {
            return;
        };
        for (at, f) in figures.iter().enumerate() {
            let last = f.last.unwrap_or(0.0);
            let what = format!("{work}: the last one has its event after");
            let of_real = (at > 0 && f.server != PROXY).then_some(last / real);
            self.extra(
                &what,
                f.server,
                &format!("{:.1} ms", last / 1000.0),
                of_real,
                Some(bound),
            );
        }
    }

    /// A figure of another kind; `of_real` against `bound`, where there is one.
    pub fn extra(
        &mut self,
        what: &str,
        server: &str,
        figure: &str,
        of_real: Option<f64>,
        bound: Option<f64>,
    ) {
        let verdict = of_real.map_or_else(String::new, |ratio| {
            self.verdict(&format!("{what}, {server}"), ratio, bound, 1)
        });
        let of_real = of_real.map_or_else(String::new, |r| format!("{r:.2}"));
        let line = format!("| {what} | {server} | {figure} | {of_real} | {verdict} |");
        println!("{line}");
        let _ = writeln!(self.extras, "{line}");
    }

    /// A figure with a bound of its own.
    pub fn bounded(&mut self, what: &str, server: &str, figure: f64, bound: f64, unit: &str) {
        let mut verdict = format!("{bound:.0} {unit}");
        if figure > bound {
            verdict.push_str(", **missed**");
            self.missed.push(format!(
                "{what}, {server}: {figure:.1} {unit} of {bound:.0}"
            ));
        }
        let line = format!("| {what} | {server} | {figure:.1} {unit} | | {verdict} |");
        println!("{line}");
        let _ = writeln!(self.extras, "{line}");
    }

    /// A figure of each server of ours against the proxy's, of which it may be `bound` at most.
    pub fn beside_proxy(
        &mut self,
        what: &str,
        figures: &[Figures],
        figure: impl Fn(&Figures) -> f64,
        bound: f64,
    ) {
        let Some(proxy) = figures.iter().find(|f| f.server == PROXY).map(&figure) else {
            return;
        };
        let what = format!("{what}, of grpc-proxy's");
        for f in figures.iter().skip(1).filter(|f| f.server != PROXY) {
            let ours = figure(f);
            let shown = format!("{ours:.1} beside {proxy:.1}");
            self.extra(&what, f.server, &shown, Some(ours / proxy), Some(bound));
        }
    }

    /// A figure of each server that has to be at least `bound` times the real one's.
    pub fn at_least(
        &mut self,
        what: &str,
        figures: &[Figures],
        figure: impl Fn(&Figures) -> f64,
        bound: f64,
    ) {
        let real = figures.first().map_or(0.0, &figure);
        for f in figures.iter().skip(1).filter(|f| f.server != PROXY) {
            self.least(what, f.server, figure(f) / real, bound);
        }
    }

    /// A ratio that has to be at least `bound`.
    pub fn least(&mut self, what: &str, server: &str, ratio: f64, bound: f64) {
        let mut verdict = format!("at least {bound:.2}");
        if ratio < bound {
            verdict.push_str(", **missed**");
            self.missed.push(format!(
                "{what}, {server}: {ratio:.2} of at least {bound:.2}"
            ));
        }
        let line = format!("| {what} | {server} | | {ratio:.2} | {verdict} |");
        println!("{line}");
        let _ = writeln!(self.extras, "{line}");
    }

    fn verdict(&mut self, what: &str, ratio: f64, bound: Option<f64>, at: usize) -> String {
        match bound {
            Some(bound) if at > 0 => {
                if ratio <= bound {
                    format!("{bound:.2}")
                } else {
                    self.missed
                        .push(format!("{what}: {ratio:.2} of {bound:.2}"));
                    format!("{bound:.2}, **missed**")
                }
            }
            _ => String::new(),
        }
    }

    /// What was missed.
    pub fn missed(&self) -> &[String] {
        &self.missed
    }

    /// The page.
    pub fn page(&self, ports: &[Port], machine: &[(&str, String)]) -> String {
        let mut page = String::from(INTRODUCTION);
        for port in ports {
            page.push_str(match port {
                Port::ZooKeeper => OF_ZOOKEEPER,
                Port::Etcd => OF_ETCD,
            });
        }
        page.push_str(AGAIN);
        page.push_str("\n## The run below\n\n");
        for (what, said) in machine {
            let _ = writeln!(page, "- {what}: {said}");
        }
        let _ = write!(
            page,
            "\n## CPU time of the server\n\n| work | server | CPU µs/op | of the real one | at most | ops/s | p50 µs | p99 µs |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n{}\n## Times and sizes\n\n\
             | what | server | figure | of the real one | at most |\n| --- | --- | --- | --- | --- |\n{}\n",
            self.costs, self.extras
        );
        page.push_str("## What is missed\n\n");
        if self.missed.is_empty() {
            page.push_str("Nothing.\n");
        }
        for missed in &self.missed {
            let _ = writeln!(page, "- {missed}");
        }
        page
    }
}

/// What a page is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// That of ZooKeeper.
    ZooKeeper,
    /// That of etcd.
    Etcd,
}

const INTRODUCTION: &str = "\
# Benchmarks

Written by `make bench`; do not edit. The ZooKeeper port stands in [benchmarks](benchmarks.md), the etcd port in
[benchmarks of the etcd port](benchmarks-etcd.md).

What an operation costs the server's process in CPU time (user and system, from `/proc`), beside the real stores in the same
run. CPU time travels from machine to machine better than latency does; what stands in the columns of ratios is meant, and latency
and throughput are what this machine makes of client and server together.

- Every server does a round in its turn, after rounds that warm it up; a figure is the median of the rounds.
- *alone* is Causeway without a legacy store and without `--data-dir`. *merge-new* has its registrations behind a legacy store
  that nobody measures, and keeps them on disk.
- The load comes from one thread with nonblocking sockets that does nothing but send and count. Sessions and clients send one
  request after the other, each on a connection of its own. Its own CPU time is not counted, but takes its share of the machine.
";

const OF_ZOOKEEPER: &str = "\
- ZooKeeper runs as in production: the compiler and collector that Java chooses, 1 GB of heap, a tick of 2 s, each write forced to disk.
- What *merge-new* does for each change besides (two or three transactions on its disk, a conditional write to its ensemble and the
  ensemble's word of it) is about 2 ms of CPU time, which the thousand deliveries of the change share.
- *create of a registration* is a Curator instance below a layout: what is decoded, recorded, counted and protected there is work that
  ZooKeeper does not do. It has no bound.
- The last watcher's time is the client's too, which has a thousand events to read on the same processors.
- A delivery of a child watch is its event with the getChildren2 (10 children) that arms it again; one of a recursive watch is the event.
- Idle sessions of all servers ping at the same time, each at a third of its timeout.
";

const OF_ETCD: &str = "\
- etcd is 3.7, without a sync of its log for each write, which favours it. *grpc-proxy* is etcd's own, counted together with its
  etcd, and answers the Range of 100 from its cache (serializable); *relay* is Causeway in phase `proxy`, counted together with its
  etcd.
- HTTP/2 is written by hand and messages are encoded before, so that a client library's work does not hide the server's.
- An instance has a value of 200 bytes, in a key of grpc-go's naming. Its put is decoded, recorded, counted and protected, which etcd
  does not do: it has no bound.
- The watches of one connection share a stream. Each is checked to be told each change once and in order; a run in which one is not
  gives no figures.
- A keep-alive at an even pace is a wake-up, a read and a write for each, which is the kernel's work: about half of what it costs
  Causeway, and nearly a third of what it costs etcd. Who answers each at once has next to nothing left below a third.
- The kernel tells CPU time in hundredths of a second. A round of 60,000 events is a few of them where an event costs half a
  microsecond, so that such a figure is right to a third of it.
- One call at a time through a relay is four wake-ups of sleeping processes instead of two; what a row of the relay costs has
  the etcd behind it in it.
";

const AGAIN: &str = "
`make bench` makes this page anew. `target/release/causeway-bench --help` has what a shorter run needs: `--only herd`, `--rounds 3`.
";
