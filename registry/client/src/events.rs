//! Reads a stream of server-sent events.
//!
//! The form is the HTML standard's (section 9.2.6): lines end in LF, CR or CR LF, a blank line ends
//! an event, a line that starts with a colon says nothing.

use thiserror::Error;

/// How large an event may become: a list of some 100,000 instances.
const MAX_EVENT: usize = 64 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// The stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum EventError {
    #[error("an event is larger than {MAX_EVENT} bytes")]
    TooLarge,
    #[error("an event is not UTF-8")]
    NotText,
}

/// Takes bytes as they come and gives whole events.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    /// The last byte was a CR: a LF that follows belongs to it.
    after_cr: bool,
}

impl EventReader {
    /// Reads on. Events that `bytes` completes are added to `events`.
    pub(crate) fn read(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), EventError> {
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => self.end_line(events)?,
                byte => self.line.push(byte),
            }
            if self.line.len() + self.event.data.len() > MAX_EVENT {
                return Err(EventError::TooLarge);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) -> Result<(), EventError> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8(line).map_err(|_| EventError::NotText)?;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.kind = value.into(),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // Ids are in the data, too; comments have an empty field.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let event = |kind: &str, data: &str| Event {
            kind: kind.into(),
            data: data.into(),
        };
        let cases = [
            (
                "event: full\nid: 1.2\ndata: {}\n\n",
                vec![event("full", "{}")],
            ),
            (":\n\n:keep\n\ndata:x\n\n", vec![event("", "x")]),
            (
                "data: a\r\ndata: b\r\n\r\ndata: c\r\rdata",
                vec![event("", "a\nb"), event("", "c")],
            ),
            ("event: none\n\ndata: ä\n\n", vec![event("", "ä")]),
            ("data\n\nretry: 5\ndata: unfinished\n", vec![event("", "")]),
        ];
        for (text, expected) in cases {
            for size in 1..=text.len() {
                let (mut reader, mut events) = (EventReader::default(), Vec::new());
                for chunk in text.as_bytes().chunks(size) {
                    reader.read(chunk, &mut events).unwrap();
                }
                assert_eq!(events, expected, "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn what_is_not_an_event_stream_is_refused() {
        let mut reader = EventReader::default();
        assert_eq!(
            reader.read(b"data: \xff\n", &mut Vec::new()),
            Err(EventError::NotText)
        );
        let mut reader = EventReader::default();
        let endless = vec![b'x'; MAX_EVENT + 1];
        assert_eq!(
            reader.read(&endless, &mut Vec::new()),
            Err(EventError::TooLarge)
        );
    }
}
