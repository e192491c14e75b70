//! What applications logged, without what differs from run to run.
//!
//! A line is `TIME|LEVEL|LOGGER|MESSAGE|EXCEPTION`, as `clients/apps/logging/logback.xml` writes it, or an object of JSON, as
//! Go's loggers write it. Everything else on standard error counts as a message too (an exception that nobody caught), apart
//! from the lines of a stack.

use std::collections::BTreeSet;

use serde_json::Value;

/// The warnings and errors of a log, each once, and whatever is no line of the logger. `private` is the folder that the
/// application works in, whose name is another one each time.
pub fn messages(text: &str, private: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| {
            // Whether an address has its name beside it depends on who asked for it first.
            let line = line.replace(private, "FOLDER").replace("localhost/", "/");
            match line.splitn(4, '|').collect::<Vec<_>>()[..] {
                [time, level, logger, message] if is_time(time) => {
                    matches!(level, "WARN" | "ERROR")
                        .then(|| format!("{level}|{logger}|{}", plain(message)))
                }
                _ if line.trim().is_empty() || line.starts_with(char::is_whitespace) => None,
                _ if away(&line) => None,
                _ => Some(json(&line).unwrap_or_else(|| format!("||{}", plain(&line)))),
            }
        })
        .collect()
}

/// A line of zap's or of go-zero's, without where and when it was written.
fn json(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = |name: &str| plain(line[name].as_str().unwrap_or_default());
    let message = [field("msg"), field("content"), field("method")].concat();
    let (level, logger, error) = (field("level"), field("logger"), field("error"));
    line.is_object()
        .then(|| format!("{level}|{logger}|{message}|{error}"))
}

/// Whether a line of a Go program tells of a call that found no server. Which calls those are depends on the moment that the server
/// was away, and what comes of it is seen in lists, calls and writes.
fn away(line: &str) -> bool {
    [
        "rpc error: code = Unavailable desc",
        "rpc error: code = DeadlineExceeded desc",
        "rpc error: code = Canceled desc",
        "context deadline exceeded",
        "context canceled",
    ]
    .iter()
    .any(|words| line.contains(words))
}

fn is_time(text: &str) -> bool {
    text.len() == 12 && text.chars().all(|c| c.is_ascii_digit() || ":.".contains(c))
}

/// A message with `#` for every number, address, port, id and hash, and without the addresses that a list holds.
pub fn plain(message: &str) -> String {
    let mut text = numbers(message);
    for (from, to) in [(", #.#.#.#:#", ""), ("[#.#.#.#:#]", "[]")] {
        text = text.replace(from, to);
    }
    text
}

fn numbers(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = uuid(rest) {
            out.push('#');
            rest = after;
            continue;
        }
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        if end == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(end);
        let identity = out.ends_with('@') && word.chars().all(|c| c.is_ascii_hexdigit());
        if identity || is_hex(word) {
            out.push('#');
        } else {
            digits(word, &mut out);
        }
        rest = after;
    }
    out
}

/// Hexadecimal with a digit in it, or marked as such.
fn is_hex(word: &str) -> bool {
    let marked = word.strip_prefix("0x");
    let hex = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_hexdigit());
    marked.is_some_and(hex) || (hex(word) && word.contains(|c: char| c.is_ascii_digit()))
}

/// The word with `#` for each run of digits.
fn digits(word: &str, out: &mut String) {
    let mut within = false;
    for c in word.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !within {
            out.push('#');
        }
        within = c.is_ascii_digit();
    }
}

/// What follows a UUID at the start of `text`. Some of its parts may be letters alone, like a word.
fn uuid(text: &str) -> Option<&str> {
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-')?;
        }
        let part = rest.get(..length)?;
        if !part.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        rest = &rest[length..];
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_run_to_run_is_left_out() {
        let cases = [
            (
                "session 0x100017f35ef0002 at 127.0.0.1:2181",
                "session # at #.#.#.#:#",
            ),
            ("[id: 0xdeadbeef]", "[id: #]"),
            ("revision bb6fa1d97caa0020c1bcfdbcbe12b4fc", "revision #"),
            (
                "/services/x/8edf3cc4-cafe-4c7e-96a4-1cfd82675417",
                "/services/x/#",
            ),
            ("Main$$Lambda/0x7f0a@abcdef", "Main$$Lambda/#@#"),
            (
                "timeout 5000ms, cost 763.163 ms",
                "timeout #ms, cost #.# ms",
            ),
            (
                "(CuratorFrameworkBase.java:103)",
                "(CuratorFrameworkBase.java:#)",
            ),
            ("dubbo%3A%2F%2F10", "dubbo%#%#%#"),
            ("a bad face", "a bad face"),
            ("größer als 3", "größer als #"),
            (
                "1[10.0.0.1:80], 2[10.0.0.1:80, 10.0.0.2:80], 0[]",
                "#[], #[], #[]",
            ),
            ("", ""),
        ];
        for (message, expected) in cases {
            assert_eq!(plain(message), expected, "{message:?}");
        }
    }

    #[test]
    fn warnings_errors_and_strangers_count_once() {
        let text = "\
12:00:00.001|INFO|a.B|fine|
12:00:00.002|WARN|a.B|lost /127.0.0.1:1|
12:00:00.003|WARN|a.B|lost localhost/127.0.0.1:22|
12:00:00.004|ERROR|a.B|/tmp/x1/y is | gone|java.io.IOException: x
Exception in thread \"main\" java.lang.Error
\tat a.B.c(B.java:1)
{\"level\":\"warn\",\"ts\":\"2026-12-01T01:34:14Z\",\"logger\":\"etcd-client\",\"msg\":\"retrying\",\"method\":\"/KV/Put\",\"error\":\"rpc error: code = NotFound desc = no lease 7\"}
{\"level\":\"warn\",\"logger\":\"etcd-client\",\"msg\":\"retrying\",\"method\":\"/KV/Put\",\"error\":\"rpc error: code = Unavailable desc = dial tcp\"}
{\"level\":\"error\",\"caller\":\"a.go:1\",\"content\":\"revoke: no\"}
look: context canceled

";
        let found: Vec<String> = messages(text, "/tmp/x1").into_iter().collect();
        assert_eq!(
            found,
            [
                "ERROR|a.B|FOLDER/y is | gone|java.io.IOException: x",
                "WARN|a.B|lost /#.#.#.#:#|",
                "error||revoke: no|",
                "warn|etcd-client|retrying/KV/Put|rpc error: code = NotFound desc = no lease #",
                "||Exception in thread \"main\" java.lang.Error",
            ]
        );
    }
}
