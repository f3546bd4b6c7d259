//! The accept loop: one task per connection, with bounds on how slow a client may be.

use super::access::Peer;
use crate::socket::Stream;
use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tower::Service;

/// A client that does not finish its request line and headers in this time is dropped.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at once; more wait in the socket's backlog.
const CONNECTIONS_MAX: u32 = 1024;
/// Bytes of a request line and its headers.
const HEAD_MAX: usize = 64 * 1024;

/// How many callers have not been answered yet: those whose request is being served, and connections that were just let
/// in and are about to ask.
#[derive(Debug, Clone, Default)]
pub struct Owed(Arc<AtomicUsize>);

/// One answer that is owed, until this is dropped.
struct Debt(Arc<AtomicUsize>);

impl Owed {
    /// Whether everybody has an answer.
    #[must_use]
    pub fn nobody(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    fn one(&self) -> Debt {
        self.0.fetch_add(1, Ordering::SeqCst);
        Debt(self.0.clone())
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Serves until `stop` says so and returns when the last connection is closed.
///
/// After the stop no connection is accepted: whoever is in the backlog stays there, for the next daemon if the socket
/// outlives this one. An open connection gets one more answer, which says `connection: close`; one that asks nothing is
/// closed after `patience`.
pub async fn serve(
    listener: UnixListener,
    router: Router,
    mut stop: watch::Receiver<bool>,
    patience: Duration,
    owed: Owed,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            biased; // a stop is heard before the next connection
            () = said(&mut stop) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, stop, owed) = (router.clone(), stop.clone(), owed.clone());
                tokio::spawn(async move {
                    connection(stream, router, stop, patience, owed).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: wait for connections to end instead of spinning.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let _all_closed = places.acquire_many(CONNECTIONS_MAX).await;
}

/// Resolves when the flag is up, or when nobody can raise it any more.
async fn said(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: UnixStream,
    router: Router,
    mut stop: watch::Receiver<bool>,
    patience: Duration,
    owed: Owed,
) {
    let peer = match stream.peer_cred() {
        Ok(peer) => Peer { uid: peer.uid(), gid: peer.gid() },
        Err(error) => return tracing::warn!(%error, "a connection without credentials"),
    };
    let stream = match stream.into_std().and_then(|stream| Stream::new(stream.into())) {
        Ok(stream) => stream,
        Err(error) => return tracing::warn!(%error, "a connection could not be registered"),
    };
    // Whoever connects is about to ask: the first request's debt begins here.
    let first = Arc::new(Mutex::new(Some(owed.one())));
    let (first_of_service, stopping) = (first.clone(), stop.clone());
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let debt = taken(&first_of_service).unwrap_or_else(|| owed.one());
        let (mut router, stopping) = (router.clone(), stopping.clone());
        async move {
            let mut answer = router.call(request).await?;
            if *stopping.borrow() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(debt);
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let patient = async {
        said(&mut stop).await;
        tokio::time::sleep(patience).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = patient => {
            connection.as_mut().graceful_shutdown();
            drop(taken(&first)); // it had its time
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn taken(first: &Mutex<Option<Debt>>) -> Option<Debt> {
    first.lock().unwrap_or_else(PoisonError::into_inner).take()
}
