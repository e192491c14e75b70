//! Short exchanges on loopback, with a bound on every wait.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, anyhow};

/// One HTTP/1.1 request on loopback, with a bound on every wait: status and body.
pub fn http(port: u16, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = connect(port)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let status = reply
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| anyhow!("no HTTP answer: {reply:?}"))?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    Ok((
        status,
        if chunked {
            unchunk(body)
        } else {
            body.to_string()
        },
    ))
}

/// A TCP connection on loopback whose reads and writes give up after 5 s.
pub fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// The answer to one of ZooKeeper's four-letter words.
pub fn four_letters(port: u16, word: &str) -> Result<String> {
    let mut stream = connect(port)?;
    stream.write_all(word.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
            break;
        };
        let (Some(chunk), Some(next)) = (rest.get(..size), rest.get(size + 2..)) else {
            break;
        };
        if size == 0 {
            break;
        }
        text.push_str(chunk);
        body = next;
    }
    text
}
