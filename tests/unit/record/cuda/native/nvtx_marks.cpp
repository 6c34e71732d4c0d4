// NVTX's own headers behind plain C functions, as in a library of a program; tests mark ranges through them.
#include <nvtx3/nvToolsExt.h>

#define API extern "C" __attribute__((visibility("default")))

static nvtxEventAttributes_t attributes(nvtxMessageType_t type) {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = type;
    return a;
}

API int push(const char* text) { return nvtxRangePushA(text); }
API int push_wide(const wchar_t* text) { return nvtxRangePushW(text); }
API int pop() { return nvtxRangePop(); }
API uint64_t start(const char* text) { return nvtxRangeStartA(text); }
API uint64_t start_wide(const wchar_t* text) { return nvtxRangeStartW(text); }
API void end(uint64_t id) { nvtxRangeEnd(id); }
API void* domain(const char* name) { return nvtxDomainCreateA(name); }
API void* domain_wide(const wchar_t* name) { return nvtxDomainCreateW(name); }
API void* registered(void* domain, const char* text) {
    return nvtxDomainRegisterStringA(static_cast<nvtxDomainHandle_t>(domain), text);
}
API void* registered_wide(void* domain, const wchar_t* text) {
    return nvtxDomainRegisterStringW(static_cast<nvtxDomainHandle_t>(domain), text);
}
API int push_registered(void* domain, void* text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_REGISTERED);
    a.message.registered = static_cast<nvtxStringHandle_t>(text);
    return nvtxDomainRangePushEx(static_cast<nvtxDomainHandle_t>(domain), &a);
}
API int push_in(void* domain, const char* text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_ASCII);
    a.message.ascii = text;
    return domain == nullptr ? nvtxRangePushEx(&a) : nvtxDomainRangePushEx(static_cast<nvtxDomainHandle_t>(domain), &a);
}
API int push_in_wide(void* domain, const wchar_t* text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_UNICODE);
    a.message.unicode = text;
    return nvtxDomainRangePushEx(static_cast<nvtxDomainHandle_t>(domain), &a);
}
API int push_nothing(void* domain) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_UNKNOWN);
    return nvtxDomainRangePushEx(static_cast<nvtxDomainHandle_t>(domain), &a);
}
API int pop_in(void* domain) { return nvtxDomainRangePop(static_cast<nvtxDomainHandle_t>(domain)); }
API uint64_t start_in(void* domain, const char* text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_ASCII);
    a.message.ascii = text;
    return domain == nullptr ? nvtxRangeStartEx(&a)
                             : nvtxDomainRangeStartEx(static_cast<nvtxDomainHandle_t>(domain), &a);
}
API void end_in(void* domain, uint64_t id) { nvtxDomainRangeEnd(static_cast<nvtxDomainHandle_t>(domain), id); }
API void destroy(void* domain) { nvtxDomainDestroy(static_cast<nvtxDomainHandle_t>(domain)); }
