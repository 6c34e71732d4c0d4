// Hardware counters of ranges of a program through CUPTI's range profiler, for `hardware_counters.py`.
//
// Each call returns 0, or CUPTI's result; `failed_call` then names the call. CUPTI must be loaded before.
#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

const char* failed = "";

struct State {
    CUpti_Profiler_Host_Object* host = nullptr;
    CUpti_RangeProfiler_Object* profiler = nullptr;
    std::vector<std::string> names;
    std::vector<const char*> metrics;
    std::vector<uint8_t> available, config, data;
    size_t passes = 0;
} state;

}  // namespace

#define TRY(call, ...)                                            \
    do {                                                          \
        __VA_ARGS__;                                              \
        if (CUptiResult result = call; result != CUPTI_SUCCESS) { \
            failed = #call;                                       \
            return static_cast<int>(result);                      \
        }                                                         \
    } while (0)

template <class Params>
static Params sized(size_t size) {
    Params params{};
    params.structSize = size;
    return params;
}
#define PARAMS(type, name) auto name = sized<type>(type##_STRUCT_SIZE)

extern "C" {

const char* failed_call() { return failed; }

// Whether the driver offers counters: 0, or the result. `levels` gets overall, architecture, SLI, vGPU, confidential
// computing, mining processor, WSL (CUpti_Profiler_Support_Level), `chip` the name of the chip.
int supported(int device, int* levels, char* chip, size_t room) {
    PARAMS(CUpti_Profiler_Initialize_Params, initialize);
    TRY(cuptiProfilerInitialize(&initialize));
    PARAMS(CUpti_Profiler_DeviceSupported_Params, support);
    support.cuDevice = device;
    support.api = CUPTI_PROFILER_RANGE_PROFILING;
    TRY(cuptiProfilerDeviceSupported(&support));
    const int values[] = {support.isSupported,         support.architecture, support.sli, support.vGpu,
                          support.confidentialCompute, support.cmp,          support.wsl};
    for (int i = 0; i < 7; ++i) levels[i] = values[i];
    PARAMS(CUpti_Device_GetChipName_Params, name);
    name.deviceIndex = device;
    TRY(cuptiDeviceGetChipName(&name));
    std::string(name.pChipName).copy(chip, room - 1);
    return 0;
}

// The passes that metrics (`count` names) need on a chip; with `use_device` counters are those of the current context.
int configure(const char* chip, const char** metrics, size_t count, int use_device, size_t* passes) {
    state = {};
    for (size_t i = 0; i < count; ++i) state.names.emplace_back(metrics[i]);
    for (auto& name : state.names) state.metrics.push_back(name.c_str());
    if (use_device) {
        PARAMS(CUpti_Profiler_GetCounterAvailability_Params, availability);
        TRY(cuptiProfilerGetCounterAvailability(&availability));
        state.available.resize(availability.counterAvailabilityImageSize);
        availability.pCounterAvailabilityImage = state.available.data();
        TRY(cuptiProfilerGetCounterAvailability(&availability));
    }
    PARAMS(CUpti_Profiler_Host_Initialize_Params, host);
    host.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    host.pChipName = chip;
    host.pCounterAvailabilityImage = use_device ? state.available.data() : nullptr;
    TRY(cuptiProfilerHostInitialize(&host));
    state.host = host.pHostObject;
    PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = state.host;
    add.ppMetricNames = state.metrics.data();
    add.numMetrics = count;
    TRY(cuptiProfilerHostConfigAddMetrics(&add));
    PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = state.host;
    TRY(cuptiProfilerHostGetConfigImageSize(&size));
    state.config.resize(size.configImageSize);
    PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
    image.pHostObject = state.host;
    image.configImageSize = state.config.size();
    image.pConfigImage = state.config.data();
    TRY(cuptiProfilerHostGetConfigImage(&image));
    PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, needed);
    needed.configImageSize = state.config.size();
    needed.pConfigImage = state.config.data();
    TRY(cuptiProfilerHostGetNumOfPasses(&needed));
    *passes = state.passes = needed.numOfPasses;
    return 0;
}

// Start counting in a context.
int enable(CUcontext context) {
    PARAMS(CUpti_RangeProfiler_Enable_Params, params);
    params.ctx = context;
    TRY(cuptiRangeProfilerEnable(&params));
    state.profiler = params.pRangeProfilerObject;
    return 0;
}

// Allocates the counters of one range, which is then run once per pass between `start` and `stop`.
int begin() {
    PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size.pRangeProfilerObject = state.profiler;
    size.pMetricNames = state.metrics.data();
    size.numMetrics = state.metrics.size();
    size.maxNumOfRanges = size.maxNumRangeTreeNodes = 1;
    TRY(cuptiRangeProfilerGetCounterDataSize(&size));
    state.data.assign(size.counterDataSize, 0);
    PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, image);
    image.pRangeProfilerObject = state.profiler;
    image.counterDataSize = state.data.size();
    image.pCounterData = state.data.data();
    TRY(cuptiRangeProfilerCounterDataImageInitialize(&image));
    PARAMS(CUpti_RangeProfiler_SetConfig_Params, config);
    config.pRangeProfilerObject = state.profiler;
    config.configSize = state.config.size();
    config.pConfig = state.config.data();
    config.counterDataImageSize = state.data.size();
    config.pCounterDataImage = state.data.data();
    config.range = CUPTI_UserRange;
    config.replayMode = CUPTI_UserReplay;
    config.maxRangesPerPass = 1;
    config.numNestingLevels = config.minNestingLevel = config.targetNestingLevel = 1;
    TRY(cuptiRangeProfilerSetConfig(&config));
    return 0;
}

int start() {
    PARAMS(CUpti_RangeProfiler_Start_Params, params);
    params.pRangeProfilerObject = state.profiler;
    TRY(cuptiRangeProfilerStart(&params));
    PARAMS(CUpti_RangeProfiler_PushRange_Params, range);
    range.pRangeProfilerObject = state.profiler;
    range.pRangeName = "range";
    TRY(cuptiRangeProfilerPushRange(&range));
    return 0;
}

// `done` is 1 once all passes have run.
int stop(int* done) {
    PARAMS(CUpti_RangeProfiler_PopRange_Params, range);
    range.pRangeProfilerObject = state.profiler;
    TRY(cuptiRangeProfilerPopRange(&range));
    PARAMS(CUpti_RangeProfiler_Stop_Params, params);
    params.pRangeProfilerObject = state.profiler;
    TRY(cuptiRangeProfilerStop(&params));
    *done = params.isAllPassSubmitted;
    return 0;
}

// Returns the metrics of the range, in the order of `configure`.
int values(double* values) {
    PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = state.profiler;
    TRY(cuptiRangeProfilerDecodeData(&decode));
    PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, evaluate);
    evaluate.pHostObject = state.host;
    evaluate.pCounterDataImage = state.data.data();
    evaluate.counterDataImageSize = state.data.size();
    evaluate.ppMetricNames = state.metrics.data();
    evaluate.numMetrics = state.metrics.size();
    evaluate.pMetricValues = values;
    TRY(cuptiProfilerHostEvaluateToGpuValues(&evaluate));
    return 0;
}

int disable() {
    PARAMS(CUpti_RangeProfiler_Disable_Params, params);
    params.pRangeProfilerObject = state.profiler;
    TRY(cuptiRangeProfilerDisable(&params));
    return 0;
}
}
