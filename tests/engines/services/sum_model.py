"""A model of MLServer that adds up the numbers of each row."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class SumModel(MLModel):
    """One input tensor of two dimensions; one output of one dimension."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The sum of each row."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("sums", rows.sum(axis=1))
        return InferenceResponse(model_name=self.name, outputs=[output])
