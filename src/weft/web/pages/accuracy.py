"""Accuracy: predictions against measured runs, by family and run by run; runs of one's own can be pasted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from weft.web import accuracy
from weft.web.showing import Shown, form_of, show
from weft.web.texts import Text
from weft.web.work import Question

EXAMPLE = """\
id,family,model,seq,gpu,gpus,tp,dp,micro_batch,global_batch,precision,iter_s
one,mine,llama-2-7b,4096,a100-80gb,8,8,1,1,16,bf16,2.9
two,mine,llama-2-7b,4096,a100-80gb,8,4,2,1,16,bf16,2.7
"""


async def accuracy_page(request: Request) -> Response:
    """The published runs or pasted ones, those of one family, and one of them."""
    runs, family, run = (request.query_params.get(name, "").strip() for name in ("runs", "family", "run"))
    source = request.app.state.texts.find("runs", runs) if runs else None
    return await show(
        request,
        Shown(
            template="accuracy.html",
            context={
                "here": "/accuracy",
                "pasted": bool(runs),
                "family": family,
                "all": accuracy.address(source),
                "example": EXAMPLE,
            },
            question=Question(accuracy.shown, (source, family, run), progress=True),
            part="accuracy_answer.html",
        ),
    )


async def send(request: Request) -> Response:
    """The form: pasted runs are kept, and their page follows."""
    form = await form_of(request)
    name = request.app.state.texts.keep("runs", form.get("runs", ""))
    return RedirectResponse(accuracy.address(Text(name)), 303)


ROUTES = (Route("/accuracy", accuracy_page), Route("/accuracy", send, methods=["POST"]))
