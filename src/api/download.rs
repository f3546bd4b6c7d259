//! Files on their way out: ranges, entity tags, archives.

use crate::pipeline::{Choice, Outgoing};
use crate::workspace::Meta;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// What a request's headers ask of a file.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    none_match: Option<String>,
    if_range: Option<String>,
    range: Option<Range>,
}

/// One range of bytes, as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    From { first: u64, last: Option<u64> },
    Last(u64),
}

fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

impl Wanted {
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            none_match: text(header::IF_NONE_MATCH).map(str::to_owned),
            if_range: text(header::IF_RANGE).map(str::to_owned),
            range: text(header::RANGE).and_then(Range::read),
        }
    }

    /// Which part of the file is to be sent.
    pub(super) fn choose(&self, meta: &Meta) -> Choice {
        let etag = quoted(&meta.etag);
        let same = |listed: &str| listed.trim() == "*" || listed.trim().trim_start_matches("W/") == etag;
        if self.none_match.as_ref().is_some_and(|tags| tags.split(',').any(same)) {
            return Choice::Unchanged;
        }
        match self.range {
            // Only of the file that the caller has a part of already.
            Some(range) if self.if_range.as_ref().is_none_or(|tag| *tag == etag) => range.of(meta.size),
            _ => Choice::Whole,
        }
    }
}

impl Range {
    /// One range; what is none, or several, is not asked for (RFC 9110, 14.2: it may be ignored).
    fn read(value: &str) -> Option<Self> {
        let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
        match (first.trim(), last.trim()) {
            ("", last) => last.parse().ok().map(Self::Last),
            (first, "") => Some(Self::From { first: first.parse().ok()?, last: None }),
            (first, last) => {
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last).then_some(Self::From { first, last: Some(last) })
            }
        }
    }

    fn of(self, size: u64) -> Choice {
        let (offset, length) = match self {
            Self::Last(count) => (size.saturating_sub(count), count.min(size)),
            Self::From { first, last } => {
                let end = last.map_or(size, |last| last.saturating_add(1).min(size));
                (first, end.saturating_sub(first))
            }
        };
        if length == 0 || offset >= size { Choice::OutOfRange } else { Choice::Part { offset, length } }
    }
}

/// The answer that carries a file.
pub(super) fn response(outgoing: Outgoing) -> Response {
    let Outgoing { meta, choice, archive, body } = outgoing;
    let (status, length) = match choice {
        Choice::Whole => (StatusCode::OK, (!archive).then_some(meta.size)),
        Choice::Part { length, .. } => (StatusCode::PARTIAL_CONTENT, Some(length)),
        Choice::Unchanged => (StatusCode::NOT_MODIFIED, None),
        Choice::OutOfRange => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let mut response = match choice {
        Choice::Unchanged | Choice::OutOfRange => status.into_response(),
        Choice::Whole | Choice::Part { .. } => (status, Body::new(Streamed { body, left: length })).into_response(),
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: String| {
        headers.insert(name, HeaderValue::from_str(&value).expect("digits and plain words"));
    };
    match choice {
        Choice::Part { offset, length } => {
            set(header::CONTENT_RANGE, format!("bytes {offset}-{}/{}", offset + length - 1, meta.size));
        }
        Choice::OutOfRange => set(header::CONTENT_RANGE, format!("bytes */{}", meta.size)),
        Choice::Whole | Choice::Unchanged => {}
    }
    if archive {
        set(header::CONTENT_TYPE, "application/x-tar".to_owned());
    } else {
        set(header::ETAG, quoted(&meta.etag));
        set(header::ACCEPT_RANGES, "bytes".to_owned());
        set(header::CONTENT_TYPE, "application/octet-stream".to_owned());
    }
    set(header::CACHE_CONTROL, "private, no-cache".to_owned());
    // Whatever a program wrote: nobody's browser may think that it is a page of ours.
    set(HeaderName::from_static("x-content-type-options"), "nosniff".to_owned());
    response
}

/// A body that comes in pieces. With a length it is announced: a stream that breaks off breaks the connection.
struct Streamed {
    body: mpsc::Receiver<io::Result<Bytes>>,
    left: Option<u64>,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = std::task::ready!(self.body.poll_recv(context));
        if let (Some(Ok(piece)), Some(left)) = (&piece, &mut self.left) {
            *left = left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::FileKind;

    fn meta(size: u64) -> Meta {
        Meta { kind: FileKind::File, size, mode: 0o644, mtime_ms: 0, etag: "e-1".to_owned() }
    }

    fn choose(headers: &[(HeaderName, &str)], size: u64) -> Choice {
        let read = |(name, value): &(HeaderName, &str)| (name.clone(), HeaderValue::from_str(value).expect("text"));
        Wanted::read(&headers.iter().map(read).collect()).choose(&meta(size))
    }

    #[test]
    fn ranges_are_those_of_the_rfc() {
        let part = |offset, length| Choice::Part { offset, length };
        for (range, expected) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-4", part(2, 3)),
            ("bytes=2-", part(2, 8)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=10-", Choice::OutOfRange),
            ("bytes=-0", Choice::OutOfRange),
            ("bytes=4-2", Choice::Whole),
            ("bytes=0-1,3-4", Choice::Whole),
            ("lines=1-2", Choice::Whole),
            ("bytes=99999999999999999999-", Choice::Whole),
            ("bytes=0-18446744073709551615", part(0, 10)),
        ] {
            assert_eq!(choose(&[(header::RANGE, range)], 10), expected, "{range}");
        }
        assert_eq!(choose(&[(header::RANGE, "bytes=0-")], 0), Choice::OutOfRange);
    }

    #[test]
    fn a_known_entity_is_not_sent_again_and_a_changed_one_not_in_part() {
        for tags in ["\"e-1\"", "\"x\", W/\"e-1\"", "*"] {
            assert_eq!(choose(&[(header::IF_NONE_MATCH, tags)], 10), Choice::Unchanged, "{tags}");
        }
        assert_eq!(choose(&[(header::IF_NONE_MATCH, "\"e-2\"")], 10), Choice::Whole);
        let range = (header::RANGE, "bytes=1-2");
        assert_eq!(choose(&[range.clone(), (header::IF_RANGE, "\"e-2\"")], 10), Choice::Whole);
        assert_ne!(choose(&[range, (header::IF_RANGE, "\"e-1\"")], 10), Choice::Whole);
    }
}
