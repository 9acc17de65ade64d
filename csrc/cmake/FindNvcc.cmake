# Finds an nvcc that makes code for VOLTA_CUDA_ARCHITECTURES, whose own ptxas it also gets to run.
#
#   NVCC            the compiler, empty when there is none
#   NVCC_RELEASE    its release, as 11.8
#   NVCC_REJECTED   one line per nvcc found and not taken, with the reason
#   CUDA_MACHINES   what machine code is made for, as "sm_70 sm_90"
#   CUDA_CODE       all that is made, as "sm_70 sm_90 compute_70"
#   CUDA_TARGETS    the same as CMake's CMAKE_CUDA_ARCHITECTURES, as 70;90-real
#
# CMAKE_CUDA_COMPILER (or -D…), then $CUDACXX, is the only candidate where it is set; otherwise every
# nvcc in PATH, in /usr/local/cuda*/bin and in /usr/bin is tried in turn.

set(oldest_nvcc 11.8) # that the kernels are built by
set(oldest_arch 70)   # whose instructions the kernels use
set(last_nvcc_of_70 12.9)

set(lowest 0)
if(VOLTA_CUDA_ARCHITECTURES MATCHES "^[0-9]+(;[0-9]+)*$")
  set(archs "${VOLTA_CUDA_ARCHITECTURES}")
  list(SORT archs COMPARE NATURAL)
  list(REMOVE_DUPLICATES archs)
  list(GET archs 0 lowest)
endif()
if(lowest LESS oldest_arch)
  message(FATAL_ERROR "VOLTA_CUDA_ARCHITECTURES is \"${VOLTA_CUDA_ARCHITECTURES}\", needs numbers \
of GPUs from ${oldest_arch} on, such as 70 or \"70;90\"")
endif()
list(TRANSFORM archs PREPEND sm_ OUTPUT_VARIABLE machines)
list(JOIN machines " " CUDA_MACHINES)
# Later GPUs compile the PTX of the lowest for themselves.
set(CUDA_CODE "${CUDA_MACHINES} compute_${lowest}")
list(TRANSFORM archs APPEND -real OUTPUT_VARIABLE CUDA_TARGETS)
list(TRANSFORM CUDA_TARGETS REPLACE "^${lowest}-real$" "${lowest}")

# A PATH whose first ptxas is another toolkit's breaks nvcc ("Value 'sm_70' is not defined"), so it
# always runs with its own directory in front.
function(volta_nvcc_path nvcc out)
  get_filename_component(dir "${nvcc}" DIRECTORY)
  set(${out} "${dir}:$ENV{PATH}" PARENT_SCOPE)
endfunction()

# Sets `reason` to why this nvcc cannot be taken, empty if it can, and `release`.
function(volta_try_nvcc nvcc reason release)
  volta_nvcc_path("${nvcc}" path)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PATH=${path}" "${nvcc}" --version
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${reason} "is no nvcc that runs" PARENT_SCOPE)
    return()
  endif()
  set(version "${CMAKE_MATCH_1}")
  set(${release} "${version}" PARENT_SCOPE)
  if(version VERSION_LESS oldest_nvcc)
    set(${reason} "release ${version} is too old: the kernels need ${oldest_nvcc} or later" PARENT_SCOPE)
    return()
  elseif(lowest EQUAL 70 AND version VERSION_GREATER last_nvcc_of_70)
    set(${reason} "release ${version} no longer makes sm_70: the last is ${last_nvcc_of_70}" PARENT_SCOPE)
    return()
  endif()

  set(host_compiler)
  if(CMAKE_CUDA_HOST_COMPILER)
    set(host_compiler -ccbin "${CMAKE_CUDA_HOST_COMPILER}")
  endif()
  set(targets)
  foreach(machine IN LISTS machines)
    string(REPLACE sm_ compute_ virtual "${machine}")
    list(APPEND targets -gencode "arch=${virtual},code=${machine}")
  endforeach()
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/nvcc_probe.cu")
  file(WRITE "${probe}" "#include <cmath>\n__global__ void probe() {}\n")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "PATH=${path}" "${nvcc}" ${host_compiler} -std=c++14
            ${targets} -c "${probe}" -o "${probe}.o"
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE failed)
  if(NOT failed)
    set(${reason} "" PARENT_SCOPE)
  elseif(text MATCHES "Unsupported gpu architecture 'compute_([0-9]+)'")
    set(${reason} "release ${version} does not know sm_${CMAKE_MATCH_1}" PARENT_SCOPE)
  elseif(text MATCHES "'?(sm_[0-9]+)'? is not defined")
    set(${reason} "release ${version} ran the ptxas of another toolkit, which lacks ${CMAKE_MATCH_1}: \
put the directory of release ${version}'s own ptxas first in PATH" PARENT_SCOPE)
  elseif(text MATCHES "unsupported GNU version")
    set(${reason} "release ${version} does not take this g++: install an older one and pass \
-DCMAKE_CUDA_HOST_COMPILER=g++-11" PARENT_SCOPE)
  else()
    string(STRIP "${text}" text)
    set(${reason} "release ${version} cannot compile for ${CUDA_MACHINES}: ${text}" PARENT_SCOPE)
  endif()
endfunction()

if(CMAKE_CUDA_COMPILER)
  set(candidates "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(candidates "$ENV{CUDACXX}")
else()
  string(REPLACE ":" ";" dirs "$ENV{PATH}")
  file(GLOB toolkits /usr/local/cuda*/bin)
  set(candidates)
  foreach(dir IN LISTS dirs toolkits ITEMS /usr/bin)
    if(EXISTS "${dir}/nvcc")
      list(APPEND candidates "${dir}/nvcc")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES candidates)
endif()

set(NVCC "")
set(NVCC_REJECTED "")
foreach(candidate IN LISTS candidates)
  volta_try_nvcc("${candidate}" reason NVCC_RELEASE)
  if(NOT reason)
    set(NVCC "${candidate}")
    break()
  endif()
  string(APPEND NVCC_REJECTED "\n  ${candidate}: ${reason}")
endforeach()
