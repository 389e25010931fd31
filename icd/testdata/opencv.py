"""Calls functions of OpenCV on arrays of an OpenCL device, and prints a digest of each result.

OpenCV compiles a program for most of them. A digest is the same for two devices that are the
same: compare those of a platform with those of the same device in the pool.
"""
import hashlib
import sys

import cv2
import numpy as np

cv2.ocl.setUseOpenCL(True)
if not cv2.ocl.useOpenCL():
    sys.exit("OpenCV uses no OpenCL device; remedy: set OPENCV_OPENCL_DEVICE, such as :CPU:")
cv2.setRNGSeed(1)
random = np.random.RandomState(7)
noise = random.randint(0, 256, (480, 640, 3), np.uint8)
COLOUR = cv2.UMat(cv2.GaussianBlur(random.randint(0, 256, (480, 640, 3), np.uint8), (5, 5), 1.1))
NOISE = cv2.UMat(noise)
GRAY = cv2.cvtColor(COLOUR, cv2.COLOR_BGR2GRAY)
OTHER = cv2.cvtColor(NOISE, cv2.COLOR_BGR2GRAY)
SHIFTED = cv2.UMat(np.roll(GRAY.get(), 2, 1))
PATCH = cv2.UMat(GRAY.get()[100:140, 200:260].copy())
REAL = cv2.UMat(GRAY.get().astype(np.float32) / 255)
MORE = cv2.UMat(REAL.get() + 1)
SQUARE = cv2.UMat(REAL.get()[:256, :256].copy())
SMALL = cv2.UMat(GRAY.get()[:128, :128].copy())
COLUMNS = cv2.UMat(np.tile(np.linspace(639, 0, 640, dtype=np.float32), (480, 1)))
ROWS = cv2.UMat(np.tile(np.linspace(0, 479, 480, dtype=np.float32)[:, None], (1, 640)))
POINTS = cv2.UMat(np.float32([[[100, 100]], [[200, 200]], [[300, 150]]]))
TABLE = cv2.UMat(np.arange(255, -1, -1, dtype=np.uint8))
WEIGHTS = cv2.UMat(np.arange(32, dtype=np.float32))
DISC = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (7, 5))
AFFINE = np.float32([[0.9, 0.1, 3], [-0.1, 0.95, 7]])
PERSPECTIVE = np.float32([[0.9, 0.1, 3], [-0.1, 0.95, 7], [1e-4, 2e-4, 1]])
SHARPEN = np.float32([[0, -1, 0], [-1, 5, -1], [0, -1, 0]])

CALLS = """
add(COLOUR, NOISE) | subtract(COLOUR, NOISE) | multiply(REAL, REAL) | divide(REAL, MORE) | absdiff(COLOUR, NOISE)
addWeighted(COLOUR, 0.3, NOISE, 0.7, 2) | bitwise_and(COLOUR, NOISE) | bitwise_not(COLOUR) | min(COLOUR, NOISE)
compare(GRAY, OTHER, cv2.CMP_GT) | exp(REAL) | log(MORE) | pow(REAL, 2.5) | sqrt(REAL) | magnitude(REAL, MORE)
phase(REAL, MORE) | polarToCart(REAL, REAL) | resize(COLOUR, (333, 211)) | resize(COLOUR, (160, 120), interpolation=cv2.INTER_AREA)
resize(COLOUR, (900, 700), interpolation=cv2.INTER_CUBIC) | resize(COLOUR, (777, 555), interpolation=cv2.INTER_NEAREST)
cvtColor(COLOUR, cv2.COLOR_BGR2HSV) | cvtColor(COLOUR, cv2.COLOR_BGR2Lab) | cvtColor(COLOUR, cv2.COLOR_BGR2YUV)
cvtColor(COLOUR, cv2.COLOR_BGR2YUV_I420) | cvtColor(COLOUR, cv2.COLOR_BGR2YCrCb) | cvtColor(COLOUR, cv2.COLOR_BGR2Luv)
cvtColor(COLOUR, cv2.COLOR_BGR2HLS) | cvtColor(COLOUR, cv2.COLOR_BGR2XYZ) | warpAffine(COLOUR, AFFINE, (640, 480))
warpPerspective(COLOUR, PERSPECTIVE, (640, 480)) | remap(COLOUR, COLUMNS, ROWS, cv2.INTER_LINEAR) | GaussianBlur(COLOUR, (7, 7), 1.7)
blur(COLOUR, (5, 5)) | medianBlur(COLOUR, 5) | bilateralFilter(COLOUR, 7, 30, 30) | Sobel(GRAY, cv2.CV_16S, 1, 0)
Scharr(GRAY, cv2.CV_32F, 0, 1) | Laplacian(GRAY, cv2.CV_16S, ksize=3) | filter2D(COLOUR, -1, SHARPEN)
sepFilter2D(GRAY, cv2.CV_32F, np.float32([1, 2, 1]), np.float32([1, 0, -1])) | erode(COLOUR, DISC) | dilate(COLOUR, DISC, iterations=2)
morphologyEx(GRAY, cv2.MORPH_GRADIENT, DISC) | pyrDown(COLOUR) | pyrUp(COLOUR) | threshold(GRAY, 127, 255, cv2.THRESH_BINARY)
threshold(GRAY, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU) | calcHist([GRAY], [0], None, [256], [0, 256])
adaptiveThreshold(GRAY, 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY, 11, 2) | equalizeHist(GRAY)
createCLAHE(2.0, (8, 8)).apply(GRAY) | calcBackProject([GRAY], [0], WEIGHTS, [0, 256], 1) | dft(REAL) | gemm(SQUARE, SQUARE, 1.0, None, 0)
idft(cv2.dft(REAL), flags=cv2.DFT_SCALE + cv2.DFT_REAL_OUTPUT) | integral(GRAY) | matchTemplate(GRAY, PATCH, cv2.TM_CCOEFF_NORMED)
matchTemplate(GRAY, PATCH, cv2.TM_SQDIFF) | cornerHarris(GRAY, 3, 3, 0.04) | cornerMinEigenVal(GRAY, 3)
goodFeaturesToTrack(GRAY, 50, 0.01, 5) | sumElems(COLOUR) | meanStdDev(COLOUR) | minMaxLoc(GRAY) | norm(COLOUR, NOISE, cv2.NORM_L2)
norm(COLOUR, cv2.NORM_L1) | countNonZero(GRAY) | reduce(REAL, 0, cv2.REDUCE_SUM) | flip(COLOUR, -1) | transpose(COLOUR)
repeat(GRAY, 2, 3) | LUT(GRAY, TABLE) | split(COLOUR) | merge([GRAY, OTHER]) | extractChannel(COLOUR, 2)
copyMakeBorder(COLOUR, 3, 5, 7, 9, cv2.BORDER_REFLECT) | normalize(REAL, None, 0, 100, cv2.NORM_MINMAX)
inRange(COLOUR, (50, 50, 50), (180, 200, 190)) | convertScaleAbs(REAL, None, 300, -20) | rotate(COLOUR, cv2.ROTATE_90_CLOCKWISE)
calcOpticalFlowPyrLK(GRAY, SHIFTED, POINTS, None) | calcOpticalFlowFarneback(GRAY, SHIFTED, None, 0.5, 3, 15, 3, 5, 1.2, 0)
fastNlMeansDenoising(SMALL, None, 10, 5, 11) | createBackgroundSubtractorMOG2(detectShadows=True).apply(COLOUR)
createBackgroundSubtractorKNN().apply(COLOUR) | StereoBM_create(32, 15).compute(GRAY, SHIFTED)
"""


def arrays(value):
    """Returns the arrays of a result."""
    if isinstance(value, (tuple, list)):
        return [a for part in value for a in arrays(part)]
    return [value.get() if isinstance(value, cv2.UMat) else np.asarray(value)]


for line in CALLS.strip().splitlines():
    for call in line.split(" | "):
        result = eval("cv2." + call)
        digest = hashlib.md5(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays(result))).hexdigest()
        print(call.partition("(")[0], digest, flush=True)
