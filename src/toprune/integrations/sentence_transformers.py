"""`CrossEncoder` and `SentenceTransformer` of sentence-transformers over a bundle's ONNX file.

Change the import and give the bundle's directory; the methods and their arguments are the same. The
classes need neither torch nor sentence-transformers. What they do not support they refuse.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toprune.errors import UserError
from toprune.integrations.calls import (
    apply,
    as_list,
    by_text,
    converted,
    identity,
    open_bundle,
    refuse,
    sigmoid,
    softmax,
)
from toprune.io.untrusted import read_json
from toprune.models.sentence_transformers import ABOUT
from toprune.run.dial import Asked
from toprune.run.manifest import Precision
from toprune.tasks.embed import unit

Activation = Callable[[Any], Any]
ACTIVATIONS: dict[str, Activation] = {"Sigmoid": sigmoid, "Identity": identity}  # of torch.nn
# Since 4.0, and before; the config of a model names one of them.
OLD_ACTIVATION = "sbert_ce_default_activation_function"


class CrossEncoder:
    """Scores pairs of texts, as `sentence_transformers.CrossEncoder` does."""

    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        device: Any = None,
        backend: str = "onnx",
        max_length: int | None = None,
        activation_fn: Activation | None = None,
        precision: Precision = "fp32",
        threads: int | None = None,
        budget: Asked = None,
        **others: Any,
    ):
        """Open a bundle.

        Args:
            model_name_or_path: the bundle's directory, exported.
            device: "cpu" or None.
            backend: "onnx" or "openvino".
            max_length: tokens of a pair, at most the bundle's own limit.
            activation_fn: turns logits (N, C) into scores: a function of numpy arrays, or a module
                of torch. None: the one in the model's config; else a sigmoid for one label, and
                none for several.
            precision, threads, budget: as for `Runner`.
            others: refused, if they ask for something.
        """
        refuse("CrossEncoder", others)
        self.runner = open_bundle(
            model_name_or_path,
            precision=precision,
            backend=backend,
            threads=threads,
            max_length=max_length,
            budget=budget,
            device=device,
        )
        task = self.runner.task
        if task.BY_TOKEN or task.POOLS or self.runner.manifest.images:
            raise UserError(f"the task {task.NAME} gives no scores of pairs; use Runner")
        self.num_labels = self.runner.outputs
        self.max_length = self.max_seq_length = self.runner.max_length
        self.activation_fn = activation_fn or _activation(Path(model_name_or_path), self.num_labels)

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        sentences: Any = None,
        **others: Any,
    ) -> Any:
        """Score pairs.

        Args:
            inputs, sentences: pairs, or one pair; the second is the name of older versions.
            batch_size: pairs of a call, at most; None: as many as fit the Runner's batches.
            show_progress_bar: show one on a terminal.
            activation_fn: in place of the model's.
            apply_softmax: over several labels.
            convert_to_numpy, convert_to_tensor: an array, one tensor, or a list of tensors.
            prompt_name, prompt, others: refused, if they ask for something.

        Returns:
            Scores (N,), or (N, C) for several labels; one row less for one pair.
        """
        refuse("CrossEncoder.predict", others | {"prompt_name": prompt_name, "prompt": prompt})
        pairs, single = _listed(_given(inputs, sentences))
        _, scores = self._scores(
            pairs, batch_size, show_progress_bar, activation_fn, bool(apply_softmax)
        )
        how = {"convert_to_numpy": convert_to_numpy, "convert_to_tensor": convert_to_tensor}
        results = converted(scores, **how)
        return results[0] if single else results

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        **others: Any,
    ) -> list[dict[str, Any]]:
        """Order documents by how well they answer a query.

        Args:
            query: the first text of every pair.
            documents: the second texts.
            top_k: the number of documents to return; None: all.
            return_documents: also return the `text` of each.
            batch_size, show_progress_bar, activation_fn: as for `predict`.
            prompt_name, prompt, others: refused, if they ask for something.

        Returns:
            Best first: `corpus_id`, the document's number from 0, `score`, and `text`.
        """
        refuse("CrossEncoder.rank", others | {"prompt_name": prompt_name, "prompt": prompt})
        if self.num_labels != 1:
            raise UserError(f"a model with {self.num_labels} labels ranks nothing; use predict")
        texts = as_list(documents)
        pairs = [(query, text) for text in texts]
        logits, scores = self._scores(pairs, batch_size, show_progress_bar, activation_fn, False)
        # High scores may round to one number: then the logits decide.
        order = np.lexsort((-logits[:, 0], -scores)).tolist()
        return [
            {"corpus_id": i, "score": float(scores[i])}
            | ({"text": texts[i]} if return_documents else {})
            for i in order[:top_k]
        ]

    def _scores(
        self,
        pairs: list[Any],
        batch_size: int | None,
        show_progress_bar: bool | None,
        activation_fn: Activation | None,
        apply_softmax: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits (N, C), and scores (N,) or (N, C)."""
        logits = by_text(
            self.runner, pairs, batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        scores = apply(activation_fn or self.activation_fn, logits)
        if self.num_labels == 1:
            return logits, scores.reshape(len(logits))
        return logits, softmax(scores).astype(np.float32) if apply_softmax else scores

    __call__ = predict


class SentenceTransformer:
    """Turns texts into vectors, as `sentence_transformers.SentenceTransformer` does."""

    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        device: Any = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        backend: str = "onnx",
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        max_length: int | None = None,
        precision: Precision = "fp32",
        threads: int | None = None,
        budget: Asked = None,
        **others: Any,
    ):
        """Open a bundle.

        Args:
            model_name_or_path: the bundle's directory, exported.
            device: "cpu" or None.
            prompts: by name; each stands before a text. None: those in the bundle.
            default_prompt_name: the prompt of texts that name none; None: as in the bundle.
            backend: "onnx" or "openvino".
            similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; None: as in the bundle.
            truncate_dim: numbers of a vector that are returned, from the first.
            max_length: tokens of a text, at most the bundle's own limit.
            precision, threads, budget: as for `Runner`.
            others: refused, if they ask for something.
        """
        refuse("SentenceTransformer", others)
        self.runner = open_bundle(
            model_name_or_path,
            precision=precision,
            backend=backend,
            threads=threads,
            max_length=max_length,
            budget=budget,
            device=device,
        )
        if not self.runner.task.POOLS:
            raise UserError(f"the task {self.runner.task.NAME} gives no vectors; use Runner")
        about = _config(Path(model_name_or_path) / ABOUT)
        self.prompts = about.get("prompts") or {} if prompts is None else prompts
        self.default_prompt_name = default_prompt_name or about.get("default_prompt_name")
        self.similarity_fn_name = similarity_fn_name or about.get("similarity_fn_name") or "cosine"
        if self.similarity_fn_name not in SIMILARITIES:
            known = ", ".join(SIMILARITIES)
            raise UserError(f"similarity_fn_name={self.similarity_fn_name!r}: use one of {known}")
        self.truncate_dim, self.max_seq_length = truncate_dim, self.runner.max_length

    def encode(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        sentences: Any = None,
        **others: Any,
    ) -> Any:
        """Turn texts into vectors.

        Args:
            inputs, sentences: texts, or one text; the second is the name of older versions.
            prompt_name: a key of `prompts`.
            prompt: stands before each text; it overrules the name.
            batch_size: texts of a call, at most; None: as many as fit the Runner's batches.
            show_progress_bar: show one on a terminal.
            output_value: "sentence_embedding" only: states of dropped tokens have no meaning.
            precision: "float32" only.
            convert_to_numpy, convert_to_tensor: an array, one tensor, or a list of tensors.
            normalize_embeddings: scale vectors to length one, if the bundle does not already.
            truncate_dim: numbers of a vector that are returned, from the first.
            others: refused, if they ask for something.

        Returns:
            Vectors (N, D), or (D,) for one text.
        """
        refuse("SentenceTransformer.encode", others)
        if output_value != "sentence_embedding" or precision != "float32":
            raise UserError(
                "SentenceTransformer.encode gives sentence_embedding in float32 only; leave "
                "output_value and precision out"
            )
        inputs = _given(inputs, sentences)
        single = isinstance(inputs, str)
        texts = [inputs] if single else as_list(inputs)
        if before := self._prompt(prompt_name, prompt):
            texts = [before + text for text in texts]
        vectors = by_text(
            self.runner, texts, batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        vectors = vectors[:, : truncate_dim or self.truncate_dim]
        vectors = unit(vectors) if normalize_embeddings else vectors
        how = {"convert_to_numpy": convert_to_numpy, "convert_to_tensor": convert_to_tensor}
        results = converted(vectors, **how)
        return results[0] if single else results

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Do the same as `encode`, with the prompt "query" if there is one and none is given."""
        return self.encode(inputs, **self._named(options, "query"))

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Do the same as `encode`, with the prompt "document" if there is one and none is given."""
        return self.encode(inputs, **self._named(options, "document", "passage", "corpus"))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """(N, D), (M, D) -> (N, M): how similar each vector is to each other one."""
        one, other = _vectors(embeddings1), _vectors(embeddings2)
        pairwise = SIMILARITIES[self.similarity_fn_name]
        return np.stack([pairwise(vector, other) for vector in one])

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """(N, D), (N, D) -> (N,): how similar the vectors at the same place are."""
        one, other = _vectors(embeddings1), _vectors(embeddings2)
        return SIMILARITIES[self.similarity_fn_name](one, other)

    def get_embedding_dimension(self) -> int:
        """The numbers of a vector."""
        return min(self.runner.outputs, self.truncate_dim or self.runner.outputs)

    get_sentence_embedding_dimension = get_embedding_dimension
    __call__ = encode

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return prompt
        name = name or self.default_prompt_name
        if name is not None and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UserError(f"there is no prompt {name!r}; the bundle has {known}")
        return "" if name is None else self.prompts[name]

    def _named(self, options: dict[str, Any], *names: str) -> dict[str, Any]:
        if options.get("prompt_name") or options.get("prompt") is not None:
            return options
        return options | {"prompt_name": next((n for n in names if n in self.prompts), None)}


# (D,) or (N, D), (N, D) -> (N,)
SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda one, other: (unit(one) * unit(other)).sum(-1),
    "dot": lambda one, other: (one * other).sum(-1),
    "euclidean": lambda one, other: -np.linalg.norm(one - other, axis=-1),
    "manhattan": lambda one, other: -np.abs(one - other).sum(-1),
}


def _vectors(embeddings: Any) -> np.ndarray:
    """(N, D) from vectors or one vector, of numpy or torch."""
    return np.atleast_2d(np.asarray(embeddings, np.float32))


def _given(inputs: Any, sentences: Any) -> Any:
    if (inputs is None) == (sentences is None):
        raise UserError("give texts as `inputs` or as `sentences`")
    return sentences if inputs is None else inputs


def _listed(inputs: Any) -> tuple[list[Any], bool]:
    """Pairs, and whether there was only one: a list of pairs holds no text itself."""
    if isinstance(inputs, str):
        raise UserError('give pairs of texts, like [("a query", "a document")]')
    items = as_list(inputs)
    is_single = bool(items) and isinstance(items[0], str)
    return ([tuple(items)] if is_single else [tuple(pair) for pair in items]), is_single


def _activation(bundle: Path, labels: int) -> Activation:
    """The activation function that the model's config names, or the usual one."""
    config = _config(bundle / "config.json")
    path = (config.get("sentence_transformers") or {}).get("activation_fn")
    path = path or config.get(OLD_ACTIVATION) or _config(bundle / ABOUT).get("activation_fn")
    if path is None:
        return sigmoid if labels == 1 else identity
    name = str(path).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise UserError(f"the model's config names the activation {path}; pass activation_fn")
    return ACTIVATIONS[name]


def _config(path: Path) -> dict[str, Any]:
    """A JSON file of a bundle; empty if the bundle has none, as in a slim serving image."""
    content = read_json(path, "copy the bundle again") if path.is_file() else {}
    return content if isinstance(content, dict) else {}
