//! HTTP/1.1 to the daemon over its Unix socket: one connection per call, or one that is kept.
//!
//! Dropping a call's future closes its connection, and with it the daemon cancels the exec that was waited for.
//! Nothing here prints; [`ClientError`] knows its words and, where there is one, its cure.
#![forbid(unsafe_code)]

use crate::api::wire::{ErrorAnswer, ErrorBody};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite};

/// A Unix socket connects at once unless the daemon no longer takes callers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls that only look something up. The doctor may have to probe.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an answer that is not ours is shown.
const EXCERPT_CHARS: usize = 200;

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket is not there, or nobody may or does listen.
    #[error("can't reach sandboxd on {}", .socket.display())]
    Unreachable {
        /// Where we knocked.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It took longer than a look-up or a connect should.
    #[error("sandboxd on {} did not answer within {} s", .socket.display(), .after.as_secs())]
    Slow {
        /// Where we knocked.
        socket: PathBuf,
        /// How long we waited.
        after: Duration,
    },
    /// The connection broke before the answer was whole.
    #[error("sandboxd hung up before it had answered")]
    HungUp(#[source] hyper::Error),
    /// A body that can't be written as JSON, or a path that is no URI: a mistake of ours.
    #[error("the request could not be written")]
    Request(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An answer in another shape than ours.
    #[error("the answer ({status}) can't be read: {excerpt:?}")]
    Unreadable {
        /// Its status.
        status: StatusCode,
        /// How it begins.
        excerpt: String,
        /// What was wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The connection could not be made one onto a program.
    #[error("can't attach")]
    NoWebSocket(#[source] Box<tungstenite::Error>),
    /// The daemon said no, or could not.
    #[error("{}", .body.message)]
    Refused {
        /// The status.
        status: StatusCode,
        /// What it said.
        body: Box<ErrorBody>,
        /// The same, byte for byte.
        raw: Bytes,
    },
}

impl ClientError {
    /// What would help, if we know.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        const START: &str = "is it running? start it with `make run` or `systemctl start sandboxd`; \
                             if it listens elsewhere, say where with --socket or SANDBOXD_SOCKET";
        const ACCESS: &str =
            "add your uid or one of your groups to [access] in the daemon's configuration, or use sudo";
        match self {
            Self::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => Some(ACCESS),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                    Some(START)
                }
                _ => Some("--socket or SANDBOXD_SOCKET must name the daemon's Unix socket"),
            },
            Self::Slow { .. } => Some("it may be stopped or overloaded; its log says more"),
            Self::NoWebSocket(_) => {
                Some("sandboxctl and sandboxd may be of different versions; try `sandboxctl health`")
            }
            Self::HungUp(_) => Some("it was stopped or died; whatever it ran for us has ended with it"),
            Self::Unreadable { .. } => {
                Some("sandboxctl and sandboxd may be of different versions; try `sandboxctl health`")
            }
            // The daemon's own words name the cure.
            Self::Refused { .. } | Self::Request(_) => None,
        }
    }
}

/// A good answer.
#[derive(Debug)]
pub struct Answer<T> {
    /// As we understand it.
    pub value: T,
    /// As it came, with fields that a newer daemon may have added.
    pub raw: Bytes,
}

/// What can be sent: bytes, whole or in pieces.
type Sendable = BoxBody<Bytes, io::Error>;

/// The way to one daemon.
#[derive(Clone)]
pub struct Client {
    socket: PathBuf,
    /// Shown to the daemon instead of our uid. Never printed.
    token: Option<String>,
}

impl Client {
    /// A client of the daemon that listens on `socket`. Connects with each call, not before.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), token: None }
    }

    /// The same, acting as the owner of a token.
    #[must_use]
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// Where the daemon should listen.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Looks something up; gives up when that takes longer than a look-up should.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        let call = self.call(Method::GET, path, Bytes::new());
        timeout(LOOKUP_TIMEOUT, call).await.unwrap_or_else(|_| Err(self.slow(LOOKUP_TIMEOUT)))
    }

    /// Has something done and waits for as long as that takes: the daemon holds the limits of an exec, not we.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<Answer<T>, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Request(error.into()))?;
        self.call(Method::POST, path, body.into()).await
    }

    /// Takes something away.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        let call = self.call(Method::DELETE, path, Bytes::new());
        timeout(LOOKUP_TIMEOUT, call).await.unwrap_or_else(|_| Err(self.slow(LOOKUP_TIMEOUT)))
    }

    /// Takes something away that may be large.
    pub async fn delete_patiently<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        self.call(Method::DELETE, path, Bytes::new()).await
    }

    /// Sends bytes as they are.
    pub async fn post_bytes<T: DeserializeOwned>(&self, path: &str, bytes: Bytes) -> Result<Answer<T>, ClientError> {
        let body = Full::new(bytes).map_err(|never| match never {}).boxed();
        let (response, _driver) = self.send_body(Method::POST, path, body, "application/octet-stream").await?;
        let status = response.status();
        let raw = response.into_body().collect().await.map_err(ClientError::HungUp)?.to_bytes();
        understand(status, raw)
    }

    /// Sends `length` bytes that come in pieces.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        pieces: mpsc::Receiver<io::Result<Bytes>>,
        length: u64,
    ) -> Result<Answer<T>, ClientError> {
        let body = Sent { pieces, left: length }.boxed();
        let (response, _driver) = self.send_body(Method::POST, path, body, "application/octet-stream").await?;
        let status = response.status();
        let raw = response.into_body().collect().await.map_err(ClientError::HungUp)?.to_bytes();
        understand(status, raw)
    }

    fn slow(&self, after: Duration) -> ClientError {
        ClientError::Slow { socket: self.socket.clone(), after }
    }

    /// Looks something up that may take its time.
    pub async fn get_patiently<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// An answer that comes in pieces, as long as the daemon has some.
    pub async fn stream(&self, path: &str) -> Result<Pieces, ClientError> {
        let (response, driver) = self.send(Method::GET, path, Bytes::new()).await?;
        let status = response.status();
        if status.is_success() {
            let archive = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-tar");
            return Ok(Pieces { body: response.into_body(), archive, _driver: driver });
        }
        let raw = response.into_body().collect().await.map_err(ClientError::HungUp)?.to_bytes();
        Err(understand::<IgnoredAny>(status, raw).expect_err("it was refused"))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer<T>, ClientError> {
        // The connection lives until the body is read.
        let (response, _driver) = self.send(method, path, body).await?;
        let status = response.status();
        let raw = response.into_body().collect().await.map_err(ClientError::HungUp)?.to_bytes();
        understand(status, raw)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, JoinSet<()>), ClientError> {
        let kind = if body.is_empty() { "" } else { "application/json" };
        let body = Full::new(body).map_err(|never| match never {}).boxed();
        self.send_body(method, path, body, kind).await
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let connect = timeout(CONNECT_TIMEOUT, UnixStream::connect(&self.socket));
        let connected = connect.await.map_err(|_| self.slow(CONNECT_TIMEOUT))?;
        connected.map_err(|source| ClientError::Unreachable { socket: self.socket.clone(), source })
    }

    async fn send_body(
        &self,
        method: Method,
        path: &str,
        body: Sendable,
        kind: &'static str,
    ) -> Result<(Response<Incoming>, JoinSet<()>), ClientError> {
        let request = self.request(method, path, body, kind)?;
        let (mut sender, driver) = self.handshake().await?;
        let response = sender.send_request(request).await.map_err(ClientError::HungUp)?;
        Ok((response, driver))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Sendable,
        kind: &str,
    ) -> Result<Request<Sendable>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "sandboxd")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("sandboxctl/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if !kind.is_empty() {
            request = request.header(CONTENT_TYPE, kind);
        }
        request.body(body).map_err(|error| ClientError::Request(error.into()))
    }

    async fn handshake(&self) -> Result<(http1::SendRequest<Sendable>, JoinSet<()>), ClientError> {
        let stream = self.connect().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::HungUp)?;
        // A set ends its tasks when it is dropped: the connection does not outlive its user.
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await; // what broke it reaches the sender, too
        });
        Ok((sender, driver))
    }

    /// A connection for many calls.
    pub async fn keep(&self) -> Result<Kept, ClientError> {
        let (sender, driver) = self.handshake().await?;
        Ok(Kept { client: self.clone(), sender, _driver: driver })
    }
}

/// A connection that is kept between calls. Dropping it closes it.
pub struct Kept {
    client: Client,
    sender: http1::SendRequest<Sendable>,
    _driver: JoinSet<()>,
}

impl Kept {
    /// Has something done, one after the other.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<Answer<T>, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Request(error.into()))?;
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
        let request = self.client.request(Method::POST, path, body, "application/json")?;
        self.sender.ready().await.map_err(ClientError::HungUp)?;
        let response = self.sender.send_request(request).await.map_err(ClientError::HungUp)?;
        let status = response.status();
        let raw = response.into_body().collect().await.map_err(ClientError::HungUp)?.to_bytes();
        understand(status, raw)
    }
}

/// A connection onto a program.
pub type WebSocket = WebSocketStream<UnixStream>;

impl Client {
    /// Attaches to a program.
    pub async fn attach(&self, path: &str) -> Result<WebSocket, ClientError> {
        let request = format!("ws://sandboxd{path}").into_client_request();
        let mut request = request.map_err(|error| ClientError::Request(error.into()))?;
        if let Some(token) = &self.token {
            let bearer = format!("Bearer {token}").parse();
            let bearer =
                bearer.map_err(|error: hyper::header::InvalidHeaderValue| ClientError::Request(error.into()))?;
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let stream = self.connect().await?;
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => {
                let (status, raw) = (response.status(), response.body().clone().unwrap_or_default());
                Err(match understand::<IgnoredAny>(status, raw.into()) {
                    Err(error) => error,
                    Ok(_) => ClientError::NoWebSocket(Box::new(tungstenite::Error::Http(response))),
                })
            }
            Err(error) => Err(ClientError::NoWebSocket(Box::new(error))),
        }
    }
}

/// An answer that comes in pieces. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pieces {
    body: Incoming,
    archive: bool,
    _driver: JoinSet<()>,
}

impl Pieces {
    /// How many bytes come, if the daemon said so.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Whether it is a directory as tar.
    #[must_use]
    pub fn archive(&self) -> bool {
        self.archive
    }

    /// The next piece; none at the end. An end that the daemon did not mean is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(piece) = frame.map_err(ClientError::HungUp)?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

/// A body that comes in pieces from somewhere that blocks.
struct Sent {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        if let Some(Ok(piece)) = &piece {
            self.left = self.left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Text as part of an address.
#[must_use]
pub fn escaped(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::with_capacity(text.len()), |mut all, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => all.push(char::from(byte)),
            _ => write!(all, "%{byte:02X}").expect("a String takes everything"),
        }
        all
    })
}

fn understand<T: DeserializeOwned>(status: StatusCode, raw: Bytes) -> Result<Answer<T>, ClientError> {
    let unreadable = |source| {
        let excerpt = String::from_utf8_lossy(&raw).chars().take(EXCERPT_CHARS).collect();
        ClientError::Unreadable { status, excerpt, source }
    };
    if status.is_success() {
        // An answer without a body says that it was done.
        let text = if raw.is_empty() { b"null" } else { raw.as_ref() };
        let value = serde_json::from_slice(text).map_err(unreadable)?;
        return Ok(Answer { value, raw });
    }
    let answer: ErrorAnswer = serde_json::from_slice(&raw).map_err(unreadable)?;
    Err(ClientError::Refused { status, body: Box::new(answer.error), raw })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::HealthAnswer;

    fn unreachable(kind: io::ErrorKind) -> ClientError {
        ClientError::Unreachable { socket: "/run/x.sock".into(), source: kind.into() }
    }

    #[test]
    fn an_error_that_is_not_ours_is_shown_in_part() {
        let raw = Bytes::from("<html>".repeat(1000));
        let error = understand::<HealthAnswer>(StatusCode::BAD_GATEWAY, raw).expect_err("not JSON");
        let ClientError::Unreadable { excerpt, .. } = &error else { panic!("{error:?}") };
        assert_eq!(excerpt.len(), EXCERPT_CHARS);
        assert!(error.hint().is_some());
    }

    #[test]
    fn each_way_of_not_reaching_the_daemon_has_its_cure() {
        let hint = |kind| unreachable(kind).hint().unwrap_or_default();
        assert!(hint(io::ErrorKind::NotFound).contains("systemctl start sandboxd"));
        assert!(hint(io::ErrorKind::ConnectionRefused).contains("make run"));
        assert!(hint(io::ErrorKind::PermissionDenied).contains("[access]"));
    }

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_unreachable() {
        let error = Client::new("/nonexistent/sandboxd.sock").get::<HealthAnswer>("/v1/health").await;
        assert!(matches!(error, Err(ClientError::Unreachable { .. })), "{error:?}");
    }
}
