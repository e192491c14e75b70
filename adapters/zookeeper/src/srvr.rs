//! What a server says of itself: the four-letter word `srvr`, the one that every release answers by default.

use std::time::Duration;

use causeway_backend::ServerHealth;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// How a server is.
pub(crate) async fn health(server: &str, limit: Duration) -> ServerHealth {
    let started = Instant::now();
    let (answering, what) = match timeout(limit, ask(server)).await {
        Ok(Ok(text)) => judge(&text),
        Ok(Err(error)) => (false, format!("cannot be asked: {error}")),
        Err(_) => (false, format!("did not answer within {limit:?}")),
    };
    ServerHealth {
        address: server.to_owned(),
        answering,
        latency: answering.then(|| started.elapsed()),
        detail: format!("ZooKeeper at {server} {what}"),
    }
}

/// Major and minor number of a server's release; `None` when it does not tell.
pub(crate) async fn release(server: &str, limit: Duration) -> Option<(u32, u32)> {
    let text = timeout(limit, ask(server)).await.ok()?.ok()?;
    release_in(&text)
}

async fn ask(server: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(b"srvr").await?;
    let mut text = Vec::new();
    // A limit, since anything may listen there.
    (&mut stream).take(1 << 16).read_to_end(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn release_in(text: &str) -> Option<(u32, u32)> {
    // "Zookeeper version: 3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built on …"
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What an answer to `srvr` says about the server.
fn judge(text: &str) -> (bool, String) {
    if let Some(mode) = text.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        return (true, format!("answers as {mode}"));
    }
    if text.contains("not in the whitelist") {
        return (
            true,
            "answers, but its whitelist hides how it is".to_owned(),
        );
    }
    if text.contains("not currently serving") {
        return (
            false,
            "has no quorum; check the other servers of the ensemble".to_owned(),
        );
    }
    (
        false,
        "does not answer like ZooKeeper; check the address".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_judged_by_their_words() {
        let cases: &[(&str, bool, &str)] = &[
            (
                "Zookeeper version: 3.8.0\nZxid: 0x4\nMode: follower\nNode count: 5\n",
                true,
                "follower",
            ),
            (
                "This ZooKeeper instance is not currently serving requests\n",
                false,
                "quorum",
            ),
            (
                "srvr is not executed because it is not in the whitelist.\n",
                true,
                "whitelist",
            ),
            ("HTTP/1.1 400 Bad Request\r\n", false, "address"),
            ("", false, "address"),
        ];
        for (text, answering, word) in cases {
            let (found, what) = judge(text);
            assert_eq!(found, *answering, "{text}");
            assert!(what.contains(word), "{what}");
        }
    }

    #[test]
    fn the_release_is_the_first_two_numbers() {
        let check = |text: &str, expected| assert_eq!(release_in(text), expected, "{text}");
        check(
            "Zookeeper version: 3.4.14-4c25d, built on x\nMode: leader\n",
            Some((3, 4)),
        );
        check("Zookeeper version: 3.10.0--1, built on x", Some((3, 10)));
        check("Zookeeper version: 3.5-alpha", Some((3, 5)));
        check("Zookeeper version: none", None);
        check(
            "srvr is not executed because it is not in the whitelist.\n",
            None,
        );
        check("", None);
    }
}
