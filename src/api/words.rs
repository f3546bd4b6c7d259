//! Words of a query: each is known or named in the answer.

use super::error::ApiError;
use axum::extract::FromRequestParts;
use axum::extract::Query;
use axum::http::request::Parts;
use std::str::FromStr;

/// Items of a page if nobody says how many.
pub(super) const PAGE: usize = 100;

/// The words of one query, taken out one by one; what is left at the end is not known here.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Words {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let read = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        read.map(|Query(words)| Self(words)).map_err(|rejection| ApiError::field("query", rejection.body_text()))
    }
}

impl Words {
    /// A word that may be given once.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut all = self.take_all(name);
        if all.len() > 1 {
            return Err(ApiError::field(name, "is given more than once"));
        }
        Ok(all.pop())
    }

    /// A word that may be given many times.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(key, _)| key == name).map(|(_, value)| value).collect()
    }

    /// A number.
    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let read = |value: String| value.parse().map_err(|_| ApiError::field(name, "is not a number of 0 or more"));
        self.take(name)?.map(read).transpose()
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name)?.as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(_) => Err(ApiError::field(name, "must be true or false")),
        }
    }

    /// `limit`
    pub(super) fn limit(&mut self) -> Result<usize, ApiError> {
        match self.number("limit")?.unwrap_or(PAGE) {
            0 => Err(ApiError::field("limit", "must be at least 1")),
            limit => Ok(limit),
        }
    }

    /// Whether all are known; `of` says of a name that is whether it may come many times.
    pub(super) fn known(&self, of: impl Fn(&str) -> Option<bool>) -> Result<(), ApiError> {
        for (place, (name, _)) in self.0.iter().enumerate() {
            match of(name) {
                None => return Err(ApiError::field(name, "is not known here")),
                Some(false) if self.0[..place].iter().any(|(other, _)| other == name) => {
                    return Err(ApiError::field(name, "is given more than once"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Nothing else may be there.
    pub(super) fn end(self) -> Result<(), ApiError> {
        match self.0.first() {
            Some((name, _)) => Err(ApiError::field(name, "is not known here")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(query: &str) -> Words {
        let uri = format!("http://x/?{query}").parse().expect("an address");
        let Query(words) = Query::try_from_uri(&uri).expect("a query");
        Words(words)
    }

    #[test]
    fn every_word_of_a_query_is_known_or_named() {
        let mut given = words("limit=7&label=a%3D1&label=b%3D2&deep=true");
        assert_eq!(given.limit().expect("a number"), 7);
        assert_eq!(given.take_all("label"), ["a=1", "b=2"]);
        assert!(given.flag("deep").expect("a flag") && !given.flag("flat").expect("left out"));
        given.end().expect("nothing else");
        for (query, name) in [("limit=0", "limit"), ("limit=x", "limit"), ("limit=1&limit=2", "limit")] {
            let error = format!("{:?}", words(query).limit().expect_err(query));
            assert!(error.contains(name), "{error}");
        }
        assert!(format!("{:?}", words("colour=1").end().expect_err("unknown")).contains("colour"));
    }
}
