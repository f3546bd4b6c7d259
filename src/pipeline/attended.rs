//! An exec whose caller waits for it.
//!
//! ```text
//! caller waits ─▶ its own task carries the exec ─▶ the end
//!            └─ hangs up ─▶ the exec is cancelled, and a task of its own carries it to its end
//! ```
//!
//! So a caller that hangs up can't leave an exec half-ended, and one that stays has no second task to be woken by.

use super::{Call, CancelOnDrop, Failure, Finished, Pipeline, SessionWish, Started};
use crate::model::{ExecRequest, SandboxId};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// What an exec comes to, once it was carried to its end.
type Carried = Pin<Box<dyn Future<Output = Result<Finished, Failure>> + Send>>;

/// The whole life of an exec that was let in; its panic is an error of ours.
pub(super) struct Life(Option<Carried>);

/// An exec whose caller is there. Dropped, it is cancelled and carried on.
struct Attended {
    life: Life,
    _cancel_with_caller: CancelOnDrop,
}

impl Life {
    pub(super) fn new(life: impl Future<Output = Result<Finished, Failure>> + Send + 'static) -> Self {
        Self(Some(Box::pin(life)))
    }
}

impl Future for Life {
    type Output = Result<Finished, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(life) = &mut self.0 else { return Poll::Ready(Err(Failure::Internal)) };
        // Unwind safe: what panicked is not looked at again, and what it shares is its own to keep sound.
        let polled = catch_unwind(AssertUnwindSafe(|| life.as_mut().poll(context)));
        let done = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(done)) => done,
            Err(panic) => {
                tracing::error!(panic = words(&*panic), "an exec panicked");
                Err(Failure::Internal)
            }
        };
        self.0 = None;
        Poll::Ready(done)
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

impl Drop for Attended {
    fn drop(&mut self) {
        let Some(life) = self.life.0.take() else { return };
        // Without a runtime the daemon is gone, and its sandboxes with it; the next start closes the record.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(Life(Some(life)));
        }
    }
}

impl Pipeline {
    /// One exec from request to outcome.
    pub async fn exec(&self, call: &Call, request: &ExecRequest) -> Result<Finished, Failure> {
        self.exec_of(call, request, None, None).await
    }

    /// The same for one that may be part of a sandbox, whose profile and project the request then has, and be a call of
    /// a session in it.
    pub(super) async fn exec_of(
        &self,
        call: &Call,
        request: &ExecRequest,
        sandbox: Option<&SandboxId>,
        session: Option<SessionWish>,
    ) -> Result<Finished, Failure> {
        let Started { live, life, .. } = self.start(call, request, sandbox, session).await?;
        let mut attended = Attended { life, _cancel_with_caller: CancelOnDrop::of(live) };
        (&mut attended.life).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Live, StopCause};
    use std::sync::Arc;
    use std::task::Waker;
    use tokio::sync::oneshot;

    fn attended(live: &Arc<Live>, life: impl Future<Output = ()> + Send + 'static) -> Attended {
        let life = Life::new(async {
            life.await;
            Err(Failure::Internal)
        });
        Attended { life, _cancel_with_caller: CancelOnDrop::of(live.clone()) }
    }

    #[tokio::test]
    async fn an_exec_whose_caller_hangs_up_is_cancelled_and_still_carried_to_its_end() {
        let live = Arc::new(Live::new(None));
        let (told, hears) = oneshot::channel();
        let theirs = live.clone();
        let mut attended = attended(&live, async move {
            theirs.stop.stopped().await;
            tokio::task::yield_now().await;
            let _ = told.send(theirs.stop.cause().cloned()); // the test may have failed
        });
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut attended.life).poll(&mut nobody).is_pending(), "nobody ends it");
        drop(attended);
        assert_eq!(hears.await, Ok(Some(StopCause::Cancelled)));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_and_nobody_elses() {
        let live = Arc::new(Live::new(None));
        let mut attended = attended(&live, async { panic!("a bug") });
        assert!(matches!((&mut attended.life).await, Err(Failure::Internal)));
    }
}
