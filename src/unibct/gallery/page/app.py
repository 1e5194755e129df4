"""The web application: the page, its files, and the JSON interface behind it."""

import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jinja2
from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image

from unibct.errors import UserError
from unibct.gallery.gallery_folder import GalleryBusyError
from unibct.gallery.page.access import (
    GuardedAccess,
    LimitedRequests,
    RequestLimits,
    TooLargeError,
    decoded_image,
)
from unibct.gallery.page.answers import (
    BackfillBody,
    CertificatesAnswer,
    ErrorAnswer,
    JobAnswer,
    RollbackBody,
    SamplesAnswer,
    SearchAnswer,
    StatusAnswer,
)
from unibct.gallery.page.changes import LOGGER, BusyError, GalleryChanges
from unibct.gallery.page.shown_gallery import Query as ImageQuery
from unibct.gallery.page.shown_gallery import ShownGallery
from unibct.gallery.search_request import NEW_QUERY, SearchRequest, describe_encoders
from unibct.gallery.sources import parse_where

SEARCH_PATH = "/api/search"
MOST_HITS = 100
_THUMBNAIL = 192  # pixels of the longer side
_HERE = Path(__file__).parent
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_IMAGE_BODY = {
    "requestBody": {
        "description": "the image's bytes; none if `image_id` names an image of the image set",
        "content": {f"image/{kind}": _BINARY for kind in ("png", "jpeg", "webp")},
    }
}


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a path for the OpenAPI description."""
    return {code: {"model": ErrorAnswer} for code in (*codes, 401, 403, 429)}


def make_app(
    shown: ShownGallery,
    changes: GalleryChanges,
    *,
    token: str | None = None,
    limits: RequestLimits | None = None,
) -> FastAPI:
    """Return the web application of a gallery.

    What changes nothing is answered by ``shown``, the rest by ``changes``. Requests must bring the
    token; it is None if only this machine can reach the server. The limits are those of each
    client.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        changes.stop()
        shown.close()

    limits = limits or RequestLimits()
    app = FastAPI(
        title="unibct gallery",
        version=metadata.version("unibct"),
        description="Search a gallery by the old and the new model, and carry the upgrade out.",
        docs_url=None,  # FastAPI's own page loads its parts from another server
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(_refuse_unknown_parameters)],
    )
    app.add_middleware(LimitedRequests, limits=limits, image_path=SEARCH_PATH)
    app.add_middleware(GuardedAccess, token=token)
    _answer_errors(app)
    _add_page(app, shown, limits)
    _add_reading(app, shown, changes)
    _add_search(app, shown)
    _add_changes(app, changes)
    return app


def _answer_errors(app: FastAPI) -> None:
    """Answer every error with one line."""

    def answer(code: int, detail: str) -> JSONResponse:
        return JSONResponse({"detail": detail}, code)

    async def user_error(_: Request, error: Exception) -> Response:
        is_busy = isinstance(error, BusyError | GalleryBusyError)
        return answer(409 if is_busy else 400, str(error))

    async def too_large(_: Request, error: Exception) -> Response:
        return answer(413, str(error))

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            return answer(422, f"{place}: there is no such field; /openapi.json has them")
        return answer(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    async def unexpected(_: Request, error: Exception) -> Response:
        LOGGER.exception("a request failed", exc_info=error)
        return answer(500, f"unexpected: {type(error).__name__}; the server's log says more")

    app.add_exception_handler(UserError, user_error)
    app.add_exception_handler(TooLargeError, too_large)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _add_page(app: FastAPI, shown: ShownGallery, limits: RequestLimits) -> None:
    """Add the page and its files."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
    )
    page = environment.get_template("page.html.jinja").render(
        name=shown.name,
        has_images=shown.images is not None,
        images_name="" if shown.images is None else shown.images.name,
        megabytes=limits.image_bytes // 1_000_000,
        version=metadata.version("unibct"),
    )
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page)


def _add_reading(app: FastAPI, shown: ShownGallery, changes: GalleryChanges) -> None:
    """Add what is read from the gallery."""

    @app.get("/api/status", responses=_errors())
    def status() -> StatusAnswer:
        """Return rows, models, steps, savings, and the work in the background."""
        return shown.status(changes.job)

    @app.get("/api/certificate", responses=_errors())
    def certificate() -> CertificatesAnswer:
        """Return why the searching model may search the rows of older ones."""
        return shown.certificates()

    @app.get("/api/samples", responses=_errors())
    def samples(
        count: Annotated[int, Query(ge=1, le=50)] = 12, seed: Annotated[int, Query(ge=0)] = 0
    ) -> SamplesAnswer:
        """Return some images of the image set, to search with."""
        return SamplesAnswer(samples=shown.samples(count, seed))

    @app.get(
        "/api/image/{image_id:path}",
        response_class=Response,
        responses=_errors(404) | {200: {"content": {"image/png": _BINARY}}},
    )
    def image(image_id: str) -> Response:
        """Return a small picture of a row, if its image is in the image set."""
        try:
            picture = Image.fromarray(shown.pixels(image_id))
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from error
        picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
        file = io.BytesIO()
        picture.save(file, "PNG")
        headers = {"Cache-Control": "private, max-age=600"}
        return Response(file.getvalue(), media_type="image/png", headers=headers)


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse a misspelt parameter of the interface: without it, the default would be done."""
    if not request.url.path.startswith("/api/"):
        return
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        names = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise HTTPException(422, f"{unknown[0]}: there is no such parameter; {names}")


async def _sent_bytes(request: Request) -> bytes:
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise UserError("send the bytes of the image as the body, not a form: --data-binary @FILE")
    return await request.body()


def _add_search(app: FastAPI, shown: ShownGallery) -> None:
    """Add the search."""

    @app.post(SEARCH_PATH, responses=_errors(400, 404, 408, 413), openapi_extra=_IMAGE_BODY)
    def search(
        data: Annotated[bytes, Depends(_sent_bytes)],
        image_id: Annotated[str | None, Query(description="of the image set")] = None,
        k: Annotated[int, Query(ge=1, le=MOST_HITS, description="rows of each model")] = 10,
        where: Annotated[
            list[str], Query(description="KEY=VALUE: only rows with this metadata")
        ] = [],  # noqa: B006
        threshold: Annotated[float | None, Query(description="the lowest score")] = None,
        far: Annotated[float | None, Query(gt=0, lt=1, description="the false accept rate")] = None,
        approximate: Annotated[bool, Query(description="use the index")] = False,
        old_scores: Annotated[bool, Query(description="scores on the old scale")] = False,
        encoders: Annotated[str, Query(description=describe_encoders())] = NEW_QUERY,
        alpha: Annotated[
            float | None, Query(ge=0, le=1, description="share of the new model in a blend")
        ] = None,
    ) -> SearchAnswer:
        """Search with an image, by the model before the last upgrade and by the present one."""
        request = SearchRequest(
            k, parse_where(where), approximate, threshold, far, old_scores, encoders, alpha
        )
        if image_id is None:
            return shown.search(ImageQuery(decoded_image(data)), request)
        try:
            query = shown.query(image_id)
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from error
        return shown.search(query, request)


def _add_changes(app: FastAPI, changes: GalleryChanges) -> None:
    """Add what changes the gallery."""

    @app.post("/api/backfill", status_code=202, responses=_errors(400, 409))
    def backfill(body: Annotated[BackfillBody, Body()] = BackfillBody()) -> JobAnswer:
        """Begin to embed older rows again, or continue; `/api/status` says how far it is."""
        return changes.backfill(body)

    @app.post("/api/backfill/pause", status_code=202, responses=_errors(409))
    def pause() -> JobAnswer | None:
        """Ask the backfill to stop after its batch."""
        return changes.pause()

    @app.post("/api/rollback", status_code=202, responses=_errors(400, 409))
    def rollback(body: Annotated[RollbackBody, Body()] = RollbackBody()) -> JobAnswer:
        """Begin to go back to before an upgrade or a backfill."""
        return changes.rollback(body.to)
