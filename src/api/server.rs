//! The accept loop: one task per connection, with bounds on how slow a client may be.

use super::access::Peer;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tower::Service;

/// A client that does not finish its request line and headers in this time is dropped.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections at once; more wait in the socket's backlog.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes of a request line and its headers.
const HEAD_MAX: usize = 64 * 1024;

/// Serves until `stop` says so, then lets open connections finish their request.
pub async fn serve(listener: UnixListener, router: Router, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = said(&mut stop) => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    connection(stream, router, stop).await;
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
}

/// Resolves when the flag is up, or when nobody can raise it any more.
async fn said(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(stream: UnixStream, router: Router, mut stop: watch::Receiver<bool>) {
    let peer = match stream.peer_cred() {
        Ok(peer) => Peer { uid: peer.uid(), gid: peer.gid() },
        Err(error) => return tracing::warn!(%error, "a connection without credentials"),
    };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = said(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
