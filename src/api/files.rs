//! `/v1/sandboxes/{id}/filesystem/…`: files of a sandbox's workspace.

use super::download::{self, Wanted};
use super::error::ApiError;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::{Op, Param, op};
use super::routes::{Route, delete, get, page, post, put};
use super::wire::{
    ContentAnswer, DirectoryAnswer, FileAnswer, MadeAnswer, MakeDirectoryRequest, MoveRequest, MovedAnswer,
    RemovedAnswer, WriteRequest,
};
use super::words::Words;
use crate::model::{ExecId, SandboxId, Timestamp};
use crate::pipeline::{Call, Failure, FileWish, Piece, UploadWish};
use crate::policy::FileArea;
use crate::workspace::{Contents, Existing, Meta, Parents, READ_MAX, Written};
use axum::extract::{FromRequest, Multipart, Request, State as AxumState};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::BodyExt;
use serde_json::json;
use std::path::{Path as FilePath, PathBuf};
use tokio::sync::mpsc;

/// Levels of a recursive list if nobody says how many.
const LEVELS: usize = 100;
/// Pieces that wait for the disk.
const PIECES: usize = 4;

/// What a file operation can be answered with beside its result.
pub(super) const FILE: &[u16] = &[400, 403, 409, 429, 502, 507];
/// Headers that come with a file.
const FILE_HEADERS: &[(&str, &str)] = &[
    ("etag", "Changes with the content; none on an archive."),
    ("accept-ranges", "`bytes`; none on an archive."),
    ("cache-control", "`private, no-cache`"),
    ("x-content-type-options", "`nosniff`"),
];

fn file_words(path: Param) -> Vec<Param> {
    vec![
        path,
        Param::one_of("area", "Where the path begins; `artifacts` is read only.", &["work", "inputs", "artifacts"]),
        Param::text("exec_id", "`area=artifacts`: whose.")
            .like(json!({"type": "string", "pattern": "^ex_[0-9a-hjkmnp-tv-z]{26}$"})),
        Param::text("grant_id", "The grant under which."),
        Param::text("call_id", "The call that the grant is for."),
    ]
}

fn path_word() -> Param {
    Param::text("path", "Relative to its area.").like(json!({"type": "string", "minLength": 1})).required()
}

fn range_headers() -> [Param; 3] {
    [
        Param::text("range", "One range of bytes; anything else is not asked for."),
        Param::text("if-none-match", "Nothing is sent of an entity that is known."),
        Param::text("if-range", "A part is sent of this entity only."),
    ]
}

/// A route that sends a file.
pub(super) fn a_file(op: Op) -> Op {
    op.headers(range_headers())
        .sends(200, "The file, or a directory as tar.", &["application/octet-stream", "application/x-tar"])
        .sends(206, "The part of it that was asked for.", &["application/octet-stream"])
        .sends(304, "It is known.", &[])
        .sends(416, "There is no such part.", &["application/octet-stream"])
        .with_headers(FILE_HEADERS)
        .fails(FILE)
}

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/sandboxes/{sandbox_id}/filesystem/files",
            read,
            op("read_file", "A file's content, at most 16 MiB at a time.")
                .query(file_words(path_word()))
                .query([Param::number("offset", "Where to begin."), Param::number("length", "How many bytes.")])
                .answers::<ContentAnswer>(200, "The file with its content.")
                .fails(FILE),
        ),
        put(
            "/v1/sandboxes/{sandbox_id}/filesystem/files",
            write,
            op("write_file", "Put a file in place, all at once.")
                .takes::<WriteRequest>()
                .answers::<FileAnswer>(200, "It is there.")
                .fails(FILE),
        ),
        delete(
            "/v1/sandboxes/{sandbox_id}/filesystem/files",
            remove,
            op("delete_file", "Remove a file or a directory.")
                .query(file_words(path_word()))
                .query([Param::flag("recursive", "A directory with all that is in it.")])
                .answers::<RemovedAnswer>(200, "It is gone.")
                .fails(FILE),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/filesystem/directories",
            list,
            op("list_directory", "What is in a directory.")
                .query(file_words(
                    Param::text("path", "Relative to its area.")
                        .like(json!({"type": "string", "minLength": 1, "default": "."})),
                ))
                .query([
                    Param::flag("recursive", "With all below it."),
                    Param::text("depth", "So many levels.")
                        .like(json!({"type": "integer", "minimum": 1, "maximum": u64::MAX})),
                ])
                .query(page(1000, ""))
                .answers::<DirectoryAnswer>(200, "A page of it, in the order of names.")
                .fails(FILE),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/filesystem/directories",
            make_directory,
            op("make_directory", "Make a directory.")
                .takes::<MakeDirectoryRequest>()
                .keyed()
                .answers::<MadeAnswer>(201, "It is there.")
                .fails(FILE),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/filesystem/move",
            rename,
            op("move_file", "Give a file or a directory another name in its area.")
                .takes::<MoveRequest>()
                .keyed()
                .answers::<MovedAnswer>(200, "It has it.")
                .fails(FILE),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/filesystem/stat",
            stat,
            op("stat_file", "What the kernel says of a file.")
                .query(file_words(path_word()))
                .answers::<FileAnswer>(200, "That.")
                .fails(FILE),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/filesystem/download",
            download,
            a_file(op("download_file", "A file as it is, or a directory as tar.").query(file_words(path_word()))),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/filesystem/upload",
            upload,
            op("upload_file", "Stream a file in: a raw body, or a form whose first part is `file`.")
                .query(file_words(
                    Param::text("path", "Relative to its area; a form's own file name if left out.")
                        .like(json!({"type": "string", "minLength": 1})),
                ))
                .query([
                    Param::text("mode", "Permissions in octal.")
                        .like(json!({"type": "string", "pattern": "^(0o)?[0-7]{1,3}$"})),
                    Param::flag("parents", "Make missing directories."),
                    Param::flag("create_only", "A file of that name is an error."),
                    Param::number("size", "How many bytes there must be."),
                    Param::text("sha256", "What their digest must be.")
                        .like(json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})),
                ])
                .takes_raw(json!({
                    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                    "multipart/form-data": {"schema": {"type": "object", "required": ["file"],
                        "properties": {"file": {"type": "string", "format": "binary"}}}},
                }))
                .answers::<FileAnswer>(201, "It is there.")
                .fails(FILE)
                .fails(&[408, 413]),
        ),
    ]
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

fn area_of(area: Option<&str>, exec_id: Option<&str>) -> Result<FileArea, ApiError> {
    match (area.unwrap_or("work"), exec_id) {
        ("work", None) => Ok(FileArea::Work),
        ("inputs", None) => Ok(FileArea::Inputs),
        ("artifacts", Some(exec)) => match exec.parse::<ExecId>() {
            Ok(exec) => Ok(FileArea::Artifacts(exec)),
            Err(error) => Err(ApiError::field("exec_id", error)),
        },
        ("artifacts", None) => Err(ApiError::field("exec_id", "missing: whose artifacts")),
        ("work" | "inputs", Some(_)) => Err(ApiError::field("exec_id", "belongs to area=artifacts")),
        _ => Err(ApiError::field("area", "is not known; there are work, inputs, artifacts")),
    }
}

/// Area, path and grant of a query.
fn wish(words: &mut Words, path: Option<&str>) -> Result<FileWish, ApiError> {
    let (area, exec) = (words.take("area")?, words.take("exec_id")?);
    let area = area_of(area.as_deref(), exec.as_deref())?;
    let given = words.take("path")?.or_else(|| path.map(str::to_owned));
    let path = given.ok_or_else(|| ApiError::field("path", "missing: which file"))?;
    Ok(FileWish { area, path, to: None, grant_id: words.take("grant_id")?, call_id: words.take("call_id")? })
}

/// Reads a query to its end.
fn query<T>(
    id: &RequestId,
    mut words: Words,
    read: impl FnOnce(&mut Words) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let all = read(&mut words).and_then(|read| words.end().map(|()| read));
    all.map_err(|error| error.of_request(&id.0))
}

fn mode_of(mode: Option<&str>) -> Result<Option<u32>, ApiError> {
    let read = |text: &str| {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| ApiError::field("mode", "is not a mode in octal up to 777"))
    };
    mode.map(read).transpose()
}

fn file(path: String, meta: &Meta) -> FileAnswer {
    FileAnswer {
        path,
        path_base64: None,
        kind: meta.kind.name().to_owned(),
        size: meta.size,
        mode: format!("{:04o}", meta.mode),
        modified_at: Timestamp::from_ms(u64::try_from(meta.mtime_ms).unwrap_or(0)),
        etag: meta.etag.clone(),
        sha256: None,
    }
}

fn written(path: String, written: Written) -> FileAnswer {
    FileAnswer { sha256: Some(written.sha256), ..file(path, &written.meta) }
}

pub(super) async fn stat(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    words: Words,
) -> Result<Json<FileAnswer>, ApiError> {
    let wish = query(&id, words, |words| wish(words, None))?;
    let found = state.pipeline.stat_file(&call, &SandboxId::from(sandbox), wish).await;
    let (path, meta) = found.map_err(failed(&id))?;
    Ok(Json(file(path, &meta)))
}

pub(super) async fn read(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    words: Words,
) -> Result<Json<ContentAnswer>, ApiError> {
    let read = |words: &mut Words| Ok((wish(words, None)?, words.number("offset")?, words.number("length")?));
    let (wish, offset, length) = query(&id, words, read)?;
    let (offset, length) = (offset.unwrap_or(0), length.unwrap_or(READ_MAX).min(READ_MAX));
    let read = state.pipeline.read_file(&call, &SandboxId::from(sandbox), wish, offset, length).await;
    let (path, content) = read.map_err(failed(&id))?;
    let length = content.bytes.len() as u64;
    let (text, encoded) = match String::from_utf8(content.bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(BASE64.encode(error.as_bytes()))),
    };
    Ok(Json(ContentAnswer {
        truncated: offset.saturating_add(length) < content.meta.size,
        file: file(path, &content.meta),
        offset,
        length,
        content: text,
        content_base64: encoded,
    }))
}

fn how(create_only: bool, parents: bool, mode: Option<&str>) -> Result<UploadWish, ApiError> {
    Ok(UploadWish {
        existing: if create_only { Existing::Refuse } else { Existing::Replace },
        parents: if parents { Parents::Make } else { Parents::MustExist },
        mode: mode_of(mode)?,
        size: None,
        sha256: None,
    })
}

fn content_of(text: Option<String>, encoded: Option<String>) -> Result<Vec<u8>, ApiError> {
    match (text, encoded) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(encoded)) => BASE64.decode(encoded).map_err(|error| ApiError::field("content_base64", error)),
        (Some(_), Some(_)) => Err(ApiError::field("content_base64", "given beside content; choose one")),
        (None, None) => Err(ApiError::field("content", "missing: what is to be in the file")),
    }
}

pub(super) async fn write(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<WriteRequest>,
) -> Result<Json<FileAnswer>, ApiError> {
    let WriteRequest { path, area, content, content_base64, mode, append, create_only, parents, grant_id, call_id } =
        request;
    let read = || {
        if append && create_only {
            return Err(ApiError::field("create_only", "says nothing beside append"));
        }
        let how = how(create_only, parents, mode.as_deref())?;
        Ok((area_of(area.as_deref(), None)?, how, content_of(content, content_base64)?))
    };
    let (area, how, content) = read().map_err(|error: ApiError| error.of_request(&id.0))?;
    let wish = FileWish { area, path, to: None, grant_id, call_id };
    let sandbox = SandboxId::from(sandbox);
    let done = state.pipeline.write_file(&call, &sandbox, wish, how, content, append).await;
    let (path, done) = done.map_err(failed(&id))?;
    Ok(Json(written(path, done)))
}

pub(super) async fn remove(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    words: Words,
) -> Result<Json<RemovedAnswer>, ApiError> {
    let (wish, recursive) = query(&id, words, |words| Ok((wish(words, None)?, words.flag("recursive")?)))?;
    let contents = if recursive { Contents::Remove } else { Contents::Refuse };
    let done = state.pipeline.remove_file(&call, &SandboxId::from(sandbox), wish, contents).await;
    let (path, removed) = done.map_err(failed(&id))?;
    Ok(Json(RemovedAnswer { path, removed }))
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    words: Words,
) -> Result<Json<DirectoryAnswer>, ApiError> {
    let read = |words: &mut Words| {
        let (recursive, depth) = (words.flag("recursive")?, words.number("depth")?);
        let levels = match depth {
            Some(0) => return Err(ApiError::field("depth", "must be at least 1")),
            Some(depth) => depth,
            None if recursive => LEVELS,
            None => 1,
        };
        Ok((wish(words, Some("."))?, levels, words.limit()?.min(1000), words.take("cursor")?))
    };
    let (wish, levels, limit, cursor) = query(&id, words, read)?;
    let sandbox = SandboxId::from(sandbox);
    let listed = state.pipeline.list_directory(&call, &sandbox, wish, levels, limit, cursor).await;
    let (directory, page) = listed.map_err(failed(&id))?;
    let items = page.entries.iter().map(|entry| {
        let path = below(&directory, &entry.path);
        let text = path.to_str().map(str::to_owned);
        let encoded = text.is_none().then(|| BASE64.encode(path.as_os_str().as_encoded_bytes()));
        let shown = text.unwrap_or_else(|| path.to_string_lossy().into_owned());
        FileAnswer { path_base64: encoded, ..file(shown, &entry.meta) }
    });
    Ok(Json(DirectoryAnswer { items: items.collect(), next_cursor: page.next }))
}

/// An entry's path in its area.
fn below(directory: &str, entry: &FilePath) -> PathBuf {
    if directory == "." { entry.to_owned() } else { FilePath::new(directory).join(entry) }
}

pub(super) async fn make_directory(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<MakeDirectoryRequest>,
) -> Result<(StatusCode, Json<MadeAnswer>), ApiError> {
    let area = area_of(request.area.as_deref(), None).map_err(|error| error.of_request(&id.0))?;
    let parents = if request.parents { Parents::Make } else { Parents::MustExist };
    let wish = FileWish { area, path: request.path, to: None, grant_id: request.grant_id, call_id: request.call_id };
    let made = state.pipeline.make_directory(&call, &SandboxId::from(sandbox), wish, parents).await;
    Ok((StatusCode::CREATED, Json(MadeAnswer { path: made.map_err(failed(&id))? })))
}

pub(super) async fn rename(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<MoveRequest>,
) -> Result<Json<MovedAnswer>, ApiError> {
    let area = area_of(request.area.as_deref(), None).map_err(|error| error.of_request(&id.0))?;
    let existing = if request.replace { Existing::Replace } else { Existing::Refuse };
    let MoveRequest { from, to, grant_id, call_id, .. } = request;
    let wish = FileWish { area, path: from, to: Some(to), grant_id, call_id };
    let moved = state.pipeline.move_file(&call, &SandboxId::from(sandbox), wish, existing).await;
    let (from, to) = moved.map_err(failed(&id))?;
    Ok(Json(MovedAnswer { from, to }))
}

pub(super) async fn download(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    words: Words,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wish = query(&id, words, |words| wish(words, None))?;
    let wanted = Wanted::read(&headers);
    let sandbox = SandboxId::from(sandbox);
    let sent = state.pipeline.download(&call, &sandbox, wish, move |meta| wanted.choose(meta)).await;
    sent.map(download::response).map_err(failed(&id))
}

/// A raw body with its path in the query, or a form whose first part is the `file`; without a path in the query it is
/// the part's own file name.
pub(super) async fn upload(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    mut words: Words,
    request: Request,
) -> Result<(StatusCode, Json<FileAnswer>), ApiError> {
    let of_request = |error: ApiError| error.of_request(&id.0);
    if request.headers().contains_key("idempotency-key") {
        let problem = "uploads take none: the same upload again leaves the same file";
        return Err(of_request(ApiError::field("idempotency-key", problem)));
    }
    let mut read = || {
        let how = how(words.flag("create_only")?, words.flag("parents")?, words.take("mode")?.as_deref())?;
        Ok(UploadWish { size: words.number("size")?, sha256: words.take("sha256")?, ..how })
    };
    let mut how = read().map_err(of_request)?;
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let source = if kind.is_some_and(|kind| kind.starts_with("multipart/form-data")) {
        let form = Multipart::from_request(request, &()).await;
        Source::Form(form.map_err(|rejection| of_request(ApiError::bad_body(rejection.body_text())))?)
    } else {
        let announced =
            request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        how.size = how.size.or(announced);
        Source::Raw(request.into_body())
    };
    let (sender, pieces) = mpsc::channel(PIECES);
    let sandbox = SandboxId::from(sandbox);
    let done = match source {
        Source::Raw(mut body) => {
            let wish = query(&id, words, |words| wish(words, None))?;
            let feed = async move {
                loop {
                    let piece = match body.frame().await {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => Piece::Data(data),
                            Err(_) => continue, // trailers
                        },
                        None => Piece::End,
                        Some(Err(_)) => return, // it ended early: nothing of it stays
                    };
                    let end = matches!(piece, Piece::End);
                    if sender.send(piece).await.is_err() || end {
                        return; // refused meanwhile, and the answer says why; or all of it was sent
                    }
                }
            };
            fed(state.pipeline.upload(&call, &sandbox, wish, how, pieces), feed).await
        }
        Source::Form(mut form) => {
            let mut part = file_part(&mut form).await.map_err(of_request)?;
            let wish = query(&id, words, |words| wish(words, part.file_name()))?;
            let feed = async move {
                loop {
                    let piece = match part.chunk().await {
                        Ok(Some(data)) => Piece::Data(data),
                        Ok(None) => Piece::End,
                        Err(_) => return, // it ended early: nothing of it stays
                    };
                    let end = matches!(piece, Piece::End);
                    if sender.send(piece).await.is_err() || end {
                        return;
                    }
                }
            };
            fed(state.pipeline.upload(&call, &sandbox, wish, how, pieces), feed).await
        }
    };
    let (path, done) = done.map_err(failed(&id))?;
    Ok((StatusCode::CREATED, Json(written(path, done))))
}

/// The result of work that is fed meanwhile. When it is done the feeding ends too: a sender that says nothing more does
/// not keep its answer back.
async fn fed<T>(work: impl Future<Output = T>, feed: impl Future<Output = ()>) -> T {
    tokio::pin!(work, feed);
    tokio::select! {
        done = &mut work => done,
        () = &mut feed => work.await,
    }
}

enum Source {
    Raw(axum::body::Body),
    Form(Multipart),
}

/// The file of a form: its first part.
async fn file_part(form: &mut Multipart) -> Result<axum::extract::multipart::Field<'_>, ApiError> {
    let missing = || ApiError::field("file", "missing: the first part of the form");
    let first = form.next_field().await.map_err(|error| ApiError::bad_body(error.body_text()))?;
    first.filter(|part| part.name() == Some("file")).ok_or_else(missing)
}
