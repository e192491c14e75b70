//! What the cheap clients of both protocols share.

use std::io::ErrorKind;

use anyhow::Result;
use tokio::net::TcpStream;

/// Sends all that was put, and empties it.
pub async fn send_all(stream: &TcpStream, output: &mut Vec<u8>) -> Result<()> {
    let mut from = 0;
    while let Some(rest) = output.get(from..).filter(|rest| !rest.is_empty()) {
        match stream.try_write(rest) {
            Ok(written) => from += written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error.into()),
        }
    }
    output.clear();
    Ok(())
}
