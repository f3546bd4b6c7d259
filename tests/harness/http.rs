//! A small HTTP/1.1 client over a Unix socket: one connection, kept alive, Content-Length or chunked answers.

use super::patient;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than any exec in the tests: a daemon that hangs is a failure with a message.
const ANSWER_DEADLINE: Duration = Duration::from_secs(150);

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// 200, 422, …
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as JSON, or null where it is none.
    pub body: Value,
    /// The body as it came.
    pub text: String,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    /// `stdout` of an exec.
    pub fn stdout(&self) -> &str {
        self.body["stdout"].as_str().unwrap_or_default()
    }
    /// `stderr` of an exec.
    pub fn stderr(&self) -> &str {
        self.body["stderr"].as_str().unwrap_or_default()
    }
    /// `status` of an exec.
    pub fn exec_status(&self) -> &str {
        self.body["status"].as_str().unwrap_or_default()
    }
    /// `error.code`
    pub fn error_code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// A kept-alive connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Client {
    /// Connects to the daemon's socket.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patient(ANSWER_DEADLINE)))?;
        stream.set_write_timeout(Some(patient(ANSWER_DEADLINE)))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// The same, for a client with less patience: an answer that takes longer is an error.
    pub fn connect_within(socket: &Path, patience: Duration) -> io::Result<Self> {
        let (client, patience) = (Self::connect(socket)?, patient(patience));
        client.stream.get_ref().set_read_timeout(Some(patience))?;
        client.stream.get_ref().set_write_timeout(Some(patience))?;
        Ok(client)
    }

    /// Sends a request and waits for its answer.
    pub fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Answer> {
        self.send(method, path, body.map(Value::to_string).as_deref(), &[])?;
        self.receive()
    }

    /// Sends only: for clients that hang up, or bodies that are no JSON.
    pub fn send(&mut self, method: &str, path: &str, body: Option<&str>, headers: &[(&str, &str)]) -> io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: sandboxd\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.unwrap_or_default().as_bytes())?;
        stream.flush()
    }

    /// Sends bytes that are no JSON, and waits for the answer.
    pub fn post_bytes(&mut self, path: &str, body: &[u8]) -> io::Result<Answer> {
        let head = format!("POST {path} HTTP/1.1\r\nhost: sandboxd\r\ncontent-length: {}\r\n\r\n", body.len());
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        self.receive()
    }

    /// Waits for the head of an answer that comes in pieces: its status and its headers. The pieces are `piece`'s.
    pub fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| bad("no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("a header without a colon"))?;
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok((status, headers))
    }

    /// Waits for the answer to what was sent.
    pub fn receive(&mut self) -> io::Result<Answer> {
        let (status, headers) = self.head()?;
        let header = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let bytes = if header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            self.chunks()?
        } else {
            let length =
                header("content-length").map_or(Ok(0), str::parse).map_err(|_| bad("no number in content-length"))?;
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes)?;
            bytes
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer { status, headers, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null), text })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon hung up"));
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece()? {
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    /// The next piece of an answer that comes in pieces; none at its end.
    pub fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let size =
            usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16).map_err(|_| bad("no chunk size"))?;
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes)?;
        self.line()?;
        Ok((size > 0).then_some(bytes))
    }
}
