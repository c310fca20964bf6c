"""A server that speaks Triton's protocol, by the messages of its client: `triton_service.py PORT GRPC_PORT`.

The model sums the rows of `x`. In a stream, as a decoupled model of Triton, it answers each inference by `responses`
(parameter, 1) responses, of which the last has `triton_final_response`, or by an error if the parameter `fails` is set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy
from tritonclient.grpc import service_pb2, service_pb2_grpc

HOST = "127.0.0.1"


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Inferences over gRPC."""

    def ModelInfer(self, request, context):
        """One inference."""
        return _sums(request)

    def ModelStreamInfer(self, request_iterator, context) -> Iterator[service_pb2.ModelStreamInferResponse]:
        """Inferences of one stream, in order."""
        for request in request_iterator:
            if request.parameters["fails"].bool_param:
                yield service_pb2.ModelStreamInferResponse(error_message=f"{request.id} fails")
                continue
            responses = request.parameters["responses"].int64_param or 1
            for number in range(1, responses + 1):
                response = _sums(request)
                response.parameters["triton_final_response"].bool_param = number == responses
                yield service_pb2.ModelStreamInferResponse(infer_response=response)


def _sums(request: service_pb2.ModelInferRequest) -> service_pb2.ModelInferResponse:
    values = numpy.frombuffer(request.raw_input_contents[0], dtype=numpy.float32).reshape(request.inputs[0].shape)
    sums = values.sum(axis=1, dtype=numpy.float32)
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.outputs.add(name="sums", datatype="FP32", shape=[len(sums)])
    response.raw_output_contents.append(sums.tobytes())
    return response


class Health(BaseHTTPRequestHandler):
    """`/v2/health/ready` on the HTTP port."""

    def do_GET(self) -> None:
        """Answer 200."""
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Write nothing."""


if __name__ == "__main__":
    port, grpc_port = map(int, sys.argv[1:3])
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(16), options=unlimited)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), server)
    server.add_insecure_port(f"{HOST}:{grpc_port}")
    server.start()
    ThreadingHTTPServer((HOST, port), Health).serve_forever()
