//! The members, and which of them is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_registry::api::ErrorReply;
use rand::Rng;
use reqwest::{Method, Response, StatusCode, Url};

use crate::client::{ClientConfig, Error};

/// The members in their order, and the one in use.
pub(crate) struct Members {
    urls: Vec<Url>,
    /// Index of the member in use, modulo their number.
    current: AtomicUsize,
    http: reqwest::Client,
    request_timeout: Duration,
}

/// What is called.
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// Path segments after `/v1/registry`, not yet escaped.
    pub(crate) path: &'a [&'a str],
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) body: Option<Vec<u8>>,
}

impl Members {
    pub(crate) fn new(urls: Vec<Url>, config: &ClientConfig) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::Config("members: none given".into()));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(config.request_timeout)
            .tcp_keepalive(Duration::from_secs(15))
            .build()
            .map_err(|error| Error::Config(error.to_string()))?;
        let request_timeout = config.request_timeout;
        Ok(Members {
            urls,
            current: AtomicUsize::new(0),
            http,
            request_timeout,
        })
    }

    /// Asks the member in use; when it does not answer, or cannot do it at present, the next, each
    /// once. The one that answered stays in use.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Response, Error> {
        let mut last = String::new();
        for _ in 0..self.urls.len() {
            let at = self.current.load(Ordering::Relaxed);
            match self.ask(at, call).await {
                Ok(reply) if reply.status().is_server_error() => {
                    last = format!("{}: {}", self.url(at), refusal(reply).await);
                }
                Ok(reply) if reply.status().is_success() => return Ok(reply),
                Ok(reply) => return Err(refusal(reply).await),
                Err(error) => last = format!("{}: {}", self.url(at), cause(&error)),
            }
            self.give_up(at);
        }
        Err(Error::Unreachable(last))
    }

    /// Opens a stream on the member in use, which is also returned. The stream itself has no time
    /// limit.
    pub(crate) async fn open(&self, call: &Call<'_>) -> Result<(Response, usize), (Error, usize)> {
        let at = self.current.load(Ordering::Relaxed);
        let fail = |error| (error, at);
        let sent = tokio::time::timeout(self.request_timeout, self.request(at, call).send()).await;
        match sent {
            Ok(Ok(reply)) if reply.status() == StatusCode::OK => Ok((reply, at)),
            Ok(Ok(reply)) => Err(fail(refusal(reply).await)),
            Ok(Err(error)) => Err(fail(Error::Unreachable(format!(
                "{}: {}",
                self.url(at),
                cause(&error)
            )))),
            Err(_) => Err(fail(Error::Unreachable(format!(
                "{}: no answer",
                self.url(at)
            )))),
        }
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> usize {
        self.urls.len()
    }

    /// Moves on from a member that failed, unless somebody did so already.
    pub(crate) fn give_up(&self, at: usize) {
        let next = at.wrapping_add(1);
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn ask(&self, at: usize, call: &Call<'_>) -> reqwest::Result<Response> {
        self.request(at, call)
            .timeout(self.request_timeout)
            .send()
            .await
    }

    fn request(&self, at: usize, call: &Call<'_>) -> reqwest::RequestBuilder {
        let mut url = self.url(at);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments
                .pop_if_empty()
                .extend(["v1", "registry"])
                .extend(call.path);
        }
        let mut request = self
            .http
            .request(call.method.clone(), url)
            .query(call.query);
        if let Some(body) = &call.body {
            request = request
                .header("content-type", "application/json")
                .body(body.clone());
        }
        request
    }

    fn url(&self, at: usize) -> Url {
        // Never empty: see `new`.
        self.urls[at % self.urls.len()].clone()
    }
}

/// How long to wait after the n-th failure in a row: doubling up to `max`, and somewhat random, so
/// that clients that lost the same member do not return together.
pub(crate) fn backoff(failures: u32, max: Duration) -> Duration {
    let full = Duration::from_millis(100)
        .saturating_mul(1 << failures.min(16))
        .min(max);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// An error with what lies behind it: the outermost one says only that sending failed.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

async fn refusal(reply: Response) -> Error {
    let status = reply.status();
    let text = reply.text().await.unwrap_or_default();
    match serde_json::from_str::<ErrorReply>(&text) {
        Ok(ErrorReply { error }) => Error::Refused {
            code: error.code,
            message: error.message,
        },
        Err(_) => Error::Refused {
            code: status.as_u16().to_string(),
            message: text.chars().take(200).collect(),
        },
    }
}
