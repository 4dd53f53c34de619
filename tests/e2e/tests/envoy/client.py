"""Envoy's side of the rate limit service: gRPC by grpcio, with the messages that Envoy publishes.

client.py ADDRESS REQUEST...: each request is JSON, {"health": SERVICE} or a RateLimitRequest. Prints a line of JSON for
each: the response, or {"error": its gRPC status, "message": ...}.
"""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc

PATIENCE_S = 60


def ask(channel, request):
    if "health" in request:
        check = health_pb2.HealthCheckRequest(service=request["health"])
        return health_pb2_grpc.HealthStub(channel).Check(check, timeout=PATIENCE_S)
    limit = json_format.ParseDict(request, rls_pb2.RateLimitRequest())
    service = rls_pb2_grpc.RateLimitServiceStub(channel)
    return service.ShouldRateLimit(limit, timeout=PATIENCE_S)


def main():
    address, *requests = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        for request in requests:
            try:
                response = ask(channel, json.loads(request))
                answer = json_format.MessageToDict(
                    response, preserving_proto_field_name=True
                )
            except grpc.RpcError as error:
                answer = {"error": error.code().name, "message": error.details()}
            print(json.dumps(answer), flush=True)


main()
