"""Our part of Envoy's messages (proto/envoy) is what Envoy itself speaks.

Every message, field, enum value and method of ours is looked up in the descriptors of the package
xds-protos, which is generated from Envoy's own files.
"""

import importlib
import os
import pathlib

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

DESCRIPTORS = pathlib.Path(os.environ["WARMPATH_ENVOY_DESCRIPTORS"])
THEIR_MODULES = (
    "envoy.config.core.v3.base_pb2",
    "envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2",
    "envoy.service.ext_proc.v3.external_processor_pb2",
    "envoy.type.v3.http_status_pb2",
)
# What the router can not do without; the comparison alone would pass with an empty file.
NEEDED = (
    "ProcessingRequest", "ProcessingResponse", "ProtocolConfiguration", "HttpHeaders", "HttpBody",
    "HttpTrailers", "HeadersResponse", "BodyResponse", "TrailersResponse", "CommonResponse",
    "HeaderMutation", "BodyMutation", "StreamedBodyResponse", "ImmediateResponse",
)  # fmt: skip


def _our_pool():
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    names = [file.name for file in files.file if file.name.startswith("envoy/")]
    return [pool.FindFileByName(name) for name in names]


def _messages(messages):
    for message in messages:
        yield message
        yield from _messages(message.nested_types)


def _enums(file):
    yield from file.enum_types_by_name.values()
    for message in _messages(file.message_types_by_name.values()):
        yield from message.enum_types


def _shape(field):
    """All that decides how a field lies on the wire and in JSON."""
    kind = field.message_type or field.enum_type
    return {
        "number": field.number,
        "type": field.type,
        "of": kind.full_name if kind else None,
        "repeated": field.is_repeated,
        "required": field.is_required,
        "presence": field.has_presence,
        "packed": field.is_packed,
        "json name": field.json_name,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
    }


OURS = _our_pool()
OUR_MESSAGES = [m for f in OURS for m in _messages(f.message_types_by_name.values())]
OUR_ENUMS = [e for f in OURS for e in _enums(f)]


@pytest.fixture(scope="module")
def theirs():
    for module in THEIR_MODULES:
        importlib.import_module(module)
    return descriptor_pool.Default()


@pytest.mark.parametrize("ours", OUR_MESSAGES, ids=lambda m: m.full_name)
def test_message(theirs, ours):
    their = theirs.FindMessageTypeByName(ours.full_name)
    assert ours.file.name == their.file.name
    assert ours.GetOptions().map_entry == their.GetOptions().map_entry
    for field in ours.fields:
        assert field.name in their.fields_by_name, f"Envoy knows no {field.full_name}"
        assert _shape(field) == _shape(their.fields_by_name[field.name]), field.full_name


@pytest.mark.parametrize("ours", OUR_ENUMS, ids=lambda e: e.full_name)
def test_enum(theirs, ours):
    their = theirs.FindEnumTypeByName(ours.full_name)
    assert ours.file.name == their.file.name
    for value in ours.values:
        assert value.name in their.values_by_name, f"Envoy knows no {value.name}"
        assert value.number == their.values_by_name[value.name].number, value.name


def test_the_service_and_its_method(theirs):
    ours = [s for f in OURS for s in f.services_by_name.values()]
    assert [s.full_name for s in ours] == ["envoy.service.ext_proc.v3.ExternalProcessor"]
    their = theirs.FindServiceByName(ours[0].full_name)
    assert [m.name for m in ours[0].methods] == ["Process"]
    for side in (ours[0], their):
        method = side.methods_by_name["Process"]
        assert method.client_streaming and method.server_streaming
        assert method.input_type.full_name == "envoy.service.ext_proc.v3.ProcessingRequest"
        assert method.output_type.full_name == "envoy.service.ext_proc.v3.ProcessingResponse"


def test_what_the_router_needs_is_there():
    names = {m.full_name for m in OUR_MESSAGES}
    assert {f"envoy.service.ext_proc.v3.{name}" for name in NEEDED} <= names
    assert "envoy.config.core.v3.HeaderValueOption" in names
    assert len(OUR_ENUMS) == 5


def test_a_message_of_ours_reads_the_same_in_theirs(theirs):
    """One message with every kind of part, written with our descriptors and read with Envoy's."""
    response = next(m for m in OUR_MESSAGES if m.name == "ProcessingResponse")
    ours = message_factory.GetMessageClass(response)()
    common = ours.request_headers.response
    common.clear_route_cache = True
    header = common.header_mutation.set_headers.add()
    header.header.key = "x-gateway-destination-endpoint"
    header.header.raw_value = b"10.0.0.1:8000"
    header.append_action = 2
    common.header_mutation.remove_headers.append("x-slo-ttft-ms")
    ours.dynamic_metadata.fields["envoy.lb"].struct_value.fields["a"].string_value = "b"
    their = message_factory.GetMessageClass(theirs.FindMessageTypeByName(response.full_name))()
    their.ParseFromString(ours.SerializeToString())
    assert str(their) == str(ours)
    assert their.request_headers.response.header_mutation.set_headers[0].header.raw_value
