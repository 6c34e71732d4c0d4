// Names the operators of PyTorch for the CUDA recorder, from callbacks of PyTorch's RecordFunction.
//
// Compiled at first use against the headers of the program's own PyTorch, and loaded by tileprof_operators.py.
// Callbacks observe and do not take part in dispatch: a dispatch mode, which sees the same operators, makes autograd
// accumulate gradients out of place and other operators choose other kernels.
//
// RecordFunction reports every call that goes through the dispatcher, nested. A name belongs to the outermost call that
// computes: calls that only lead to others are passed over (`leads_to_others`), and what an operator calls while it
// computes is a part of it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;

// An operator on more tensors is not described: an optimiser step takes all parameters of a model at once.
constexpr size_t kMostTensors = 64;

// What the recorder's library does with names; each belongs to the thread that calls.
struct Recorder {
    void (*mark)(const char* op, const char* module);  // launches belong to these from now on
    int (*marked)();  // whether anything was launched since
    void (*called)(const char* json);  // how the operator of the mark was called
} recorder;

std::mutex& mutex = *new std::mutex;  // protects `handle` and the operators that were seen
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
std::atomic<bool> looking{false};  // whether operators are to be named now
std::atomic<bool> described_on_cpu{false};  // tests have no GPU

struct Thread {
    bool inside = false;  // an operator that has a name is running
    bool compiled = false;  // code of torch.compile is running, which names its launches itself
    std::string module;
    int open_emitters = 0;  // `emit_nvtx` contexts
    at::CallbackHandle last = at::INVALID_CALLBACK_HANDLE;  // of the callback that runs after theirs, while any is open
    ~Thread();
};
thread_local bool thread_ends = false;  // operators that are called after this point have no names
thread_local Thread here;
Thread::~Thread() { thread_ends = true; }

// ---- JSON

void append_text(std::string* out, const std::string& text) {
    *out += '"';
    for (char c : text) {
        if (c == '"' || c == '\\') {
            *out += {'\\', c};
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", c);
            *out += code;
        } else {
            *out += c;
        }
    }
    *out += '"';
}

void append_double(std::string* out, double value) {
    char text[40];
    for (int digits : {15, 16, 17}) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, nullptr) == value) break;
    }
    *out += text;
    if (strpbrk(text, ".e") == nullptr) *out += ".0";  // an integer is another argument
}

template <typename Numbers>
void append_numbers(std::string* out, const Numbers& numbers) {
    *out += '[';
    for (size_t i = 0; i < numbers.size(); ++i) *out += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
    *out += ']';
}

// ---- operators

struct Argument {
    std::string name;
    bool written;
    bool untold;  // a type, layout or the like, which also comes as an integer
};

// What callbacks need of an operator, as it was when it was first called: programs may remove operators.
struct Operator {
    std::string name;  // with overload, as Python's OpOverload.name() has it
    bool composite;  // PyTorch itself makes it of others, on devices that have no kernel of their own
    bool is_view;
    std::vector<bool> kernels;  // by DispatchKey, whether it has a kernel of its own
    std::vector<Argument> arguments;

    bool has_kernel(DispatchKey key) const { return kernels[static_cast<size_t>(key)]; }
};

bool is_untold(const c10::Type& type) {
    switch (type.kind()) {
        case c10::TypeKind::OptionalType:
        case c10::TypeKind::ListType:
            return is_untold(*type.containedType(0));
        case c10::TypeKind::ScalarTypeType:
        case c10::TypeKind::LayoutType:
        case c10::TypeKind::MemoryFormatType:
        case c10::TypeKind::QSchemeType:
            return true;
        default:
            return false;
    }
}

Operator facts_of(const c10::OperatorHandle& handle) {
    Operator out{c10::toString(handle.operator_name()), false, false, {false}, {}};
    out.composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
    for (size_t key = 1; key <= static_cast<size_t>(DispatchKey::EndOfRuntimeBackendKeys); ++key)
        out.kernels.push_back(handle.hasKernelForDispatchKey(static_cast<DispatchKey>(key)));
    bool aliases = false, writes = false;
    for (const c10::Argument& argument : handle.schema().arguments()) {
        const c10::AliasInfo* alias = argument.alias_info();
        out.arguments.push_back(
            {argument.name(), alias != nullptr && alias->isWrite(), is_untold(*argument.real_type())});
        aliases |= alias != nullptr;
        writes |= out.arguments.back().written;
    }
    out.is_view = aliases && !writes;
    return out;
}

// The operator of a call; null for what is none.
const Operator* operator_of(const at::RecordFunction& call) {
    static auto& operators = *new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>;
    auto name = call.operator_name();
    if (!name) return nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    auto at = operators.find(*name);
    if (at != operators.end()) return at->second.get();
    auto handle = c10::Dispatcher::singleton().findSchema(*name);
    if (!handle) return nullptr;  // an instruction of TorchScript's
    return operators.emplace(*name, std::make_unique<Operator>(facts_of(*handle))).first->second.get();
}

void add_keys(const IValue& value, DispatchKeySet* keys) {
    if (value.isTensor()) {
        *keys = *keys | value.toTensor().unsafeGetTensorImpl()->key_set();
    } else if (value.isList()) {
        for (const IValue& one : value.toListRef()) add_keys(one, keys);
    }
}

// Whether a call only calls other operators, each through the dispatcher: because it is made of them, or because what
// stands before kernels takes it apart: a dispatch mode of the program's, a transformation of functorch, autocasting.
bool leads_to_others(const Operator& op, c10::ArrayRef<const IValue> inputs) {
    if (c10::impl::dispatch_mode_enabled()) return true;
    c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
    DispatchKeySet keys;
    for (const IValue& input : inputs) add_keys(input, &keys);
    keys = (keys | local.included_) - local.excluded_;
    if (keys.has(DispatchKey::FuncTorchDynamicLayerFrontMode) || keys.has(DispatchKey::FuncTorchDynamicLayerBackMode) ||
        keys.has(DispatchKey::FuncTorchBatched) || keys.has(DispatchKey::FuncTorchVmapMode))
        return true;
    for (DispatchKey key : {DispatchKey::AutocastCUDA, DispatchKey::AutocastCPU})
        if (keys.has(key) && op.has_kernel(key)) return true;
    if (!op.composite) return false;
    DispatchKey backend =
        (keys & (c10::backend_functionality_keys | DispatchKeySet(DispatchKey::NestedTensor))).highestPriorityTypeId();
    return backend == DispatchKey::Undefined || !op.has_kernel(backend);
}

// ``float32`` and so on, as Python has it.
std::string name_of(c10::ScalarType type) {
    static const auto& names = *new std::unordered_map<c10::ScalarType, const char*>{
        {c10::kFloat, "float32"},
        {c10::kDouble, "float64"},
        {c10::kHalf, "float16"},
        {c10::kComplexFloat, "complex64"},
        {c10::kComplexDouble, "complex128"},
        {c10::kComplexHalf, "complex32"},
        {c10::kChar, "int8"},
        {c10::kShort, "int16"},
        {c10::kInt, "int32"},
        {c10::kLong, "int64"},
        {c10::kByte, "uint8"},
    };
    auto at = names.find(type);
    if (at != names.end()) return at->second;
    std::string out = c10::toString(type);
    for (char& c : out) c = static_cast<char>(tolower(c));
    return out;
}

// ---- how an operator was called, as tileprof_calls.py describes it

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Operand {
    std::string argument;
    const void* address;
    std::vector<int64_t> shape, strides;
    c10::ScalarType type;
    size_t item_bytes;
    bool written;
    c10::DeviceType device;
    std::optional<WeakTensor> changing;  // of what is written to, which may be resized
};

class Description {
  public:
    void arguments(const Operator& op, c10::ArrayRef<const IValue> inputs) {
        for (size_t i = 0; i < op.arguments.size() && i < inputs.size(); ++i) {
            const Argument& argument = op.arguments[i];
            std::string value;
            if (argument.untold && !inputs[i].isNone()) continue;
            if (!append(inputs[i], argument.name, argument.written, &value)) continue;
            arguments_ += arguments_.empty() ? "" : ",";
            append_text(&arguments_, argument.name);
            arguments_ += ":" + value;
        }
    }

    void results(const std::vector<IValue>& outputs) {
        for (Operand& operand : operands_)
            if (operand.changing)
                if (auto tensor = operand.changing->lock())
                    operand = measured(at::Tensor(tensor), operand.argument, true);
        bool one_list = outputs.size() == 1 && outputs[0].isList();
        c10::ArrayRef<IValue> results = one_list ? outputs[0].toListRef() : c10::ArrayRef<IValue>(outputs);
        std::string unused;
        for (size_t i = 0; i < results.size(); ++i)
            if (results[i].isTensor()) append(results[i], "out" + (i == 0 ? "" : std::to_string(i)), true, &unused);
    }

    // The event; nothing where no tensor is on the device, or where one has no plain memory.
    std::optional<std::string> event(const Operator& op) const {
        bool on_device = false;
        for (const Operand& operand : operands_)
            on_device |=
                operand.device == c10::DeviceType::CUDA || (described_on_cpu && operand.device == c10::DeviceType::CPU);
        if (strange_ || !on_device || operands_.size() > kMostTensors) return std::nullopt;
        std::string out = "\"e\":\"called\",\"op\":";
        append_text(&out, op.name);
        out += ",\"arguments\":{" + arguments_ + "},\"tensors\":[";
        for (size_t i = 0; i < operands_.size(); ++i) {
            out += i == 0 ? "" : ",";
            append_operand(&out, operands_[i]);
        }
        return out + "]";
    }

  private:
    // Returns false for what is left out.
    bool append(const IValue& value, const std::string& name, bool written, std::string* out) {
        if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
            *out += "null";
        } else if (value.isTensor()) {
            return append_tensor(value.toTensor(), name, written, out);
        } else if (value.isList() || value.isTuple()) {
            *out += '[';
            bool first = true, whole = true;
            auto items = value.isList() ? value.toListRef() : c10::ArrayRef<IValue>(value.toTupleRef().elements());
            for (const IValue& item : items) {
                *out += std::exchange(first, false) ? "" : ",";
                whole &= append(item, name, written, out);
            }
            *out += ']';
            return whole;
        } else if (value.isBool()) {
            *out += value.toBool() ? "true" : "false";
        } else if (value.isInt()) {
            *out += std::to_string(value.toInt());
        } else if (value.isDouble() && std::isfinite(value.toDouble())) {
            append_double(out, value.toDouble());
        } else if (value.isString()) {
            append_text(out, value.toStringRef());
        } else {
            return false;
        }
        return true;
    }

    bool append_tensor(const at::Tensor& tensor, const std::string& name, bool written, std::string* out) {
        if (tensor.layout() != c10::kStrided || tensor.is_nested() || !tensor.has_storage() ||
            tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
            strange_ = true;
            return false;
        }
        if (operands_.size() <= kMostTensors) operands_.push_back(measured(tensor, name, written));
        *out += "{\"tensor\":" + std::to_string(operands_.size() - 1) + "}";
        return true;
    }

    Operand measured(const at::Tensor& tensor, const std::string& name, bool written) {
        const void* address = nullptr;
        try {
            address = tensor.const_data_ptr();
        } catch (const std::exception&) {
            strange_ = true;
        }
        return {name,
                address,
                tensor.sizes().vec(),
                tensor.strides().vec(),
                tensor.scalar_type(),
                static_cast<size_t>(tensor.element_size()),
                written,
                tensor.device().type(),
                written ? std::optional<WeakTensor>(tensor.getIntrusivePtr()) : std::nullopt};
    }

    static void append_operand(std::string* out, const Operand& operand) {
        *out += '[';
        append_text(out, operand.argument);
        *out += "," + std::to_string(reinterpret_cast<uintptr_t>(operand.address)) + ",";
        append_numbers(out, operand.shape);
        *out += ',';
        append_numbers(out, operand.strides);
        *out += ',';
        append_text(out, name_of(operand.type));
        *out += "," + std::to_string(operand.item_bytes) + (operand.written ? ",true," : ",false,");
        append_text(out, c10::DeviceTypeName(operand.device, /*lower_case=*/true));
        *out += ']';
    }

    std::string arguments_;
    std::vector<Operand> operands_;
    bool strange_ = false;  // a tensor has no plain memory: sparse, nested, or of a subclass without storage
};

// ---- callbacks

struct Running : at::ObserverContext {
    const Operator* op = nullptr;
    std::string module;
    std::optional<Description> description;  // none for views, which launch nothing
    int exceptions = 0;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (thread_ends || here.inside || here.compiled) return nullptr;
    const Operator* op = operator_of(call);
    if (op == nullptr || leads_to_others(*op, call.inputs())) return nullptr;
    auto running = std::make_unique<Running>();
    running->op = op;
    running->module = here.module;
    running->exceptions = std::uncaught_exceptions();
    if (!op->is_view) running->description.emplace().arguments(*op, call.inputs());
    recorder.mark(op->name.c_str(), running->module.c_str());
    here.inside = true;
    return running;
}

void end(const at::RecordFunction& call, at::ObserverContext* context) {
    if (context == nullptr) return;
    auto& running = *static_cast<Running*>(context);
    if (running.description && std::uncaught_exceptions() == running.exceptions && recorder.marked()) {
        running.description->results(call.outputs());
        if (auto event = running.description->event(*running.op)) recorder.called(event->c_str());
    }
    recorder.mark("", running.module.c_str());  // other libraries launch, too
    here.inside = false;
}

// Under `emit_nvtx`, the range that begins what is recorded may be that of an operator: a callback of PyTorch opens it
// when those of all threads have run already.
std::unique_ptr<at::ObserverContext> begin_last(const at::RecordFunction& call) {
    return looking ? begin(call) : nullptr;
}

at::RecordFunctionCallback callback(at::RecordFunctionCallback::StartCallback start) {
    return at::RecordFunctionCallback(start, end)
        .needsInputs(true)
        .needsOutputs(true)
        .scopes({at::RecordScope::FUNCTION});
}

}  // namespace

#define TILEPROF_EXPORT extern "C" __attribute__((visibility("default")))

TILEPROF_EXPORT void tileprof_operators_start(void (*mark)(const char*, const char*), int (*marked)(),
                                              void (*called)(const char*)) {
    recorder = {mark, marked, called};
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { new (&mutex) std::mutex; });
}

// Names operators of all threads from now on.
TILEPROF_EXPORT void tileprof_operators_look(int on_cpu) {
    described_on_cpu = on_cpu != 0;
    std::lock_guard<std::mutex> lock(mutex);
    looking = true;
    if (handle == at::INVALID_CALLBACK_HANDLE) handle = at::addGlobalCallback(callback(begin));
}

TILEPROF_EXPORT void tileprof_operators_look_away() {
    std::lock_guard<std::mutex> lock(mutex);
    looking = false;
    if (handle == at::INVALID_CALLBACK_HANDLE) return;
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
}

// The module that this thread is in; "" for none.
TILEPROF_EXPORT void tileprof_operators_module(const char* path) { here.module = path; }

// Whether this thread runs code of torch.compile.
TILEPROF_EXPORT void tileprof_operators_compiled(int on) { here.compiled = on != 0; }

// Whether this thread emits ranges of operators from now on; contexts may nest, where some are disabled.
TILEPROF_EXPORT void tileprof_operators_emit(int on) {
    if (on != 0) {
        if (here.open_emitters++ == 0) here.last = at::addThreadLocalCallback(callback(begin_last));
    } else if (here.open_emitters > 0 && --here.open_emitters == 0) {
        at::removeCallback(here.last);
    }
}
